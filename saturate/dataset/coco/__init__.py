"""Annotation files in COCO's format -> columns, and a synthetic stand-in."""
