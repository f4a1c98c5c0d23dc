"""saturate trains networks on images and videos, and says whether the GPU is kept busy."""

__version__ = "1.0.0"
