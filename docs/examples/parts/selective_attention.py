"""Selective attention. After Leviathan et al. 2024, arXiv:2410.02703."""

from torch.nn import functional as F

from headtohead.parts import MultiHeadAttention, register_part


@register_part("attention", "selective")
class SelectiveAttention(MultiHeadAttention):
    """Each token lowers the scores that later tokens give to earlier ones by its own positive scores in head 0."""

    def scores(self, q, k, context):
        scores, keys = super().scores(q, k, context), context.key_positions[..., None, :]
        is_earlier = (keys > 0) & (keys < context.query_positions[..., :, None])
        selected = context.zero_padding(scores[:, 0].relu() * is_earlier)  # batch x query x key
        past = context.get_state("selected")
        past = 0 if past is None else F.pad(past, (0, k.shape[2] - past.shape[1]))[:, None]
        context.set_state("selected", (past + selected.sum(1, keepdim=True))[:, 0])
        return scores - (past + selected.cumsum(1) - selected)[:, None]
