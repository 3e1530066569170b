"""Vision: image classifiers with torchvision's parameter names, and CLIP with transformers'."""
