"""Log experiments to TensorBoard, Weights & Biases and trackio, each in a process of its own."""
