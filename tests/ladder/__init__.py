"""What can be shown of the CUDA path on a machine without a GPU, from the environments' source to machine code."""
