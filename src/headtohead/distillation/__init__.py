"""Knowledge distillation: teachers, cached teacher outputs, evaluation and presentation."""
