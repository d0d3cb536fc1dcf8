"""Log experiments to TensorBoard, Weights & Biases and trackio, each in a separate process."""
