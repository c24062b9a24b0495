"""The reference lane: executes a TensorRT-LLM checkpoint in PyTorch."""
