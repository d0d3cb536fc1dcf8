"""The swappable parts of a transformer: one module per slot, with its base class and the built-in parts.

`headtohead.parts` lists the public names."""
