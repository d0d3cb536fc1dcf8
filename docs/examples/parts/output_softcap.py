"""Cap logits. After Gemma Team 2024, arXiv:2408.00118."""

from headtohead.parts import OutputStep, register_part


@register_part("output", "soft-cap")
class OutputSoftCap(OutputStep):
    """Logits between -cap and cap: output = ["linear", "soft-cap"]."""

    def __init__(self, sizes, *, cap: float = 15.0):
        super().__init__(sizes)
        self.cap = cap

    def forward(self, logits, x, context):
        return self.cap * (logits / self.cap).tanh()
