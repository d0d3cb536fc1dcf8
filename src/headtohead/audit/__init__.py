"""Audits: can this number be believed? Of a model, of its start, and of the data; each says what it tried and found."""

from .batch import audit_batch
from .cache import audit_cache
from .causality import audit_causality
from .data import audit_data
from .findings import Finding, not_comparable
from .leaks import audit_labels, audit_rows, fold, unseen_rows
from .maps import audit_maps
from .models import audit_model
from .padding import audit_padding
from .positions import audit_positions
from .repeat import audit_repeatable
from .roads import audit_roads
from .simple import simple_answers, whose_words
from .start import audit_gradients, audit_start
from .subject import Subject
from .vocabulary import audit_unknown, audit_vocabulary

__all__ = [
    "Finding",
    "Subject",
    "audit_batch",
    "audit_cache",
    "audit_causality",
    "audit_data",
    "audit_gradients",
    "audit_labels",
    "audit_maps",
    "audit_model",
    "audit_padding",
    "audit_positions",
    "audit_repeatable",
    "audit_roads",
    "audit_rows",
    "audit_start",
    "audit_unknown",
    "audit_vocabulary",
    "fold",
    "not_comparable",
    "simple_answers",
    "unseen_rows",
    "whose_words",
]
