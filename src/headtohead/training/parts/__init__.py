"""The swappable parts of training: one module per slot, with its base class and the built-in parts."""
