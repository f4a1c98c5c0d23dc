"""The loaders of images, one a file."""
