"""Diffusion: U-Nets, variational autoencoders, and samplers that turn noise into data."""
