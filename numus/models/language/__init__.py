"""Language models, a module per family over shared blocks, with transformers' parameter names."""
