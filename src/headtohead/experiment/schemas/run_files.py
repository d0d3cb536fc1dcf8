"""The files of one run, VARIANT/seed-N/."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from headtohead.audit.result import CheckResult
from headtohead.config.experiment import Trial
from headtohead.experiment.schemas.base import Interval, MetricName, NonNegativeInt, Number, Record, VersionedRecord
from headtohead.verdict.record import NullableFloat


class TrialFile(VersionedRecord):
    """trial.json: the settings of the trial; written first"""

    identity: str
    """hash of settings, seed, corpus and user code"""
    corpus_digest: str = ""
    """hash of the corpus"""
    dependencies: dict[str, str] = {}
    """SHA-256 of the code files (plugins, network, modules that they import) and of the weights of other models that
    the run depends on, and the version of Head to Head"""
    trial: Trial
    """resolved settings"""


class StartFile(VersionedRecord):
    """start.json: the state before step 1"""

    tensor_hashes: dict[str, str]
    """shape and hash of each initial tensor, by name"""
    declared_starts: list[str] = []
    """tensors that parts declare to initialize differently on purpose"""
    schedule_digest: str
    """hash of the batch schedule"""
    steps: NonNegativeInt
    """optimizer steps"""
    steps_per_epoch: NonNegativeInt
    """optimizer steps per epoch"""
    vocab_size: NonNegativeInt = 0
    """tokens in the vocabulary"""
    num_classes: NonNegativeInt | None = None
    """classes of a classifier"""
    parameters: NonNegativeInt
    """number of parameters"""
    flops_per_token: NonNegativeInt | None
    """FLOPs of one forward pass per token at full context; null if they could not be counted"""
    tokens_per_step: float | None = None
    """mean number of input tokens per step, without padding"""
    weights_bytes: NonNegativeInt
    """size of the weights"""
    training_bytes: NonNegativeInt
    """estimated peak memory of a training step: weights, gradients, optimizer state and activations"""
    device: str
    """cpu, cuda or mps"""
    violates: list[str] = []
    """invariants that parts of the model declare to violate"""
    versions: dict[str, str] = {}
    """versions of Python and of the main libraries"""


class MetricsLine(Record):
    """metrics.jsonl: one line for each split at each evaluation. The split `batches` is the mean training loss since
    the last evaluation"""

    step: NonNegativeInt
    """optimizer steps so far"""
    split: str
    """name of the split, or `batches`"""
    loss: Annotated[float, Field(allow_inf_nan=True)]
    """mean negative log-likelihood per prediction; not finite after divergence"""
    count: NonNegativeInt | None = None
    """number of predictions"""
    perplexity: Annotated[float, Field(allow_inf_nan=True)] | None = None
    """exp(loss), for language models"""
    accuracy: Annotated[float, Field(allow_inf_nan=True)] | None = None
    """share of correct predictions, for classifiers"""
    lr: float | None = None
    """learning rate; on lines of `batches`"""
    seconds: float = 0.0
    """training time so far"""

    def get_metric(self, metric: str) -> float:
        """Return the named metric, or the loss where the line does not have it."""
        value = {"perplexity": self.perplexity, "accuracy": self.accuracy}.get(metric)
        return self.loss if value is None else value


class SplitScores(Record):
    """Mean scores of one split"""

    loss: NullableFloat
    """mean negative log-likelihood per prediction; null if it is not finite"""
    count: NonNegativeInt = 0
    """number of predictions"""
    perplexity: float | None = None
    """exp(loss), for language models; null if it is not finite"""
    accuracy: float | None = None
    """share of correct predictions, for classifiers"""

    def get_metric(self, metric: str) -> float | None:
        """Return the named metric, NaN if it is not finite; None if this split does not have it."""
        value = {"loss": self.loss, "perplexity": self.perplexity, "accuracy": self.accuracy}.get(metric)
        return math.nan if value is None and metric == "perplexity" and math.isnan(self.loss) else value


class TrainingSummary(Record):
    """Duration, memory and outcome of one training run"""

    steps: NonNegativeInt = 0
    """optimizer steps taken"""
    seconds: float
    """duration"""
    seconds_per_step: float
    """duration per step"""
    peak_memory: NonNegativeInt
    """peak memory in bytes"""
    last_loss: float | None
    """mean training loss since the last evaluation; null if not finite"""
    chosen_step: NonNegativeInt
    """step whose weights were chosen: the last one, or the best one on validation data"""
    first_step_digest: str = ""
    """hash of loss and gradients of the first step"""
    is_stopped_early: bool = False
    """whether early stopping ended training"""
    processes: NonNegativeInt = 1
    """processes that trained the model together"""
    resharded: list[int] = []
    """steps after which the number of processes changed"""


class ResultFile(VersionedRecord):
    """result.json: written last; a run that has it is finished"""

    variant: str = ""
    """name of the variant"""
    seed: int = 0
    """seed of the trial"""
    metric: MetricName
    """the metric of the task"""
    scores: dict[str, SplitScores]
    """scores by split, with the chosen weights"""
    training: TrainingSummary
    """duration, memory and outcome of training"""
    trial_seconds: float = 0.0
    """duration of the trial, with evaluation and audits"""
    seconds_per_summary: float | None = None
    """duration of one generated summary; distillation on summaries, first seed only"""
    opened_files: dict[str, str] = {}
    """SHA-256 of each file that the code of a network or part read during the run, by path"""
    written_files: list[str] = []
    """paths of the files that this code wrote; their content is not an input of the run"""
    sha256: dict[str, str]
    """checksum of every other file of the run"""


class FailureFile(Record):
    """failure.json: written in place of result.json when a trial fails"""

    message: str
    """error message"""
    kind: str = ""
    """class name of the exception"""


class SampleRecord(Record):
    """A prompt and its continuation"""

    prompt: str
    """prompt text"""
    text: str
    """generated text"""


class TokenLoss(Record):
    """Loss of one token of a scored sentence"""

    token: str
    """token text"""
    loss: float
    """negative log-likelihood"""
    known: bool
    """whether the vocabulary contains the token"""


class TextScore(Record):
    """A text scored by a language model"""

    text: str
    """the text"""
    loss: float
    """mean loss per token"""
    perplexity: float
    """exp(loss)"""
    tokens: list[TokenLoss]
    """loss of each token"""
    blocks: NonNegativeInt
    """blocks the text was split into to fit the context"""


class ClassPrediction(Record):
    """A text classified by a model"""

    text: str
    """the text"""
    label: str
    """predicted class"""
    confidence: float
    """probability of the predicted class"""
    probabilities: dict[str, float]
    """probability of each class"""
    unknown_tokens: NonNegativeInt
    """number of tokens that the vocabulary does not contain"""
    truncated: bool
    """whether the text was cut to the context"""


class ProbesFile(Record):
    """probes.json: results on the texts of [probe]"""

    samples: list[SampleRecord] = []
    """continuations of the prompts"""
    sentences: dict[str, TextScore | ClassPrediction] = {}
    """result of each sentence, by name"""


class LengthResult(Record):
    """Scores of one split at one input length"""

    context: NonNegativeInt
    """input length in tokens"""
    split: str = ""
    """name of the split"""
    error: str | None = None
    """why the model cannot process this length"""
    loss: float | None = None
    """mean loss"""
    perplexity: float | None = None
    """perplexity"""
    accuracy: float | None = None
    """accuracy"""
    count: Number | None = None
    """number of predictions"""
    seconds_per_1000_tokens: float | None = None
    """evaluation time"""


class LengthCost(Record):
    """Cost of the layers at one input length"""

    context: NonNegativeInt
    """input length in tokens"""
    seconds_per_1000_tokens: float
    """time of one forward and backward pass"""
    bytes_per_token: float
    """activation memory kept for the backward pass"""


class LengthGeneralizationFile(VersionedRecord):
    """lengths.json: results at other input lengths (probe.contexts, probe.costs)"""

    contexts: list[LengthResult] = []
    """scores by input length and split"""
    costs: list[LengthCost] = []
    """costs by input length"""


class AuditsFile(VersionedRecord):
    """audits.json: audits of the scores; for the first seed of each variant, also of the model"""

    audits: list[CheckResult]
    """result of each check"""


class HeadMeasures(Record):
    """Measures of one attention head"""

    layer: Annotated[int, Field(ge=1)]
    """layer, from 1"""
    head: Annotated[int, Field(ge=1)]
    """head, from 1"""
    entropy: float | None = None
    """entropy of the attention weights in bits"""
    distance: float | None = None
    """mean distance in tokens"""
    first: float | None = None
    """weight on the first token"""
    itself: float | None = None
    """weight on the position of the query"""
    previous: float | None = None
    """weight on the previous position"""
    padding: float | None = None
    """weight on padding"""
    induction: float | None = None
    """weight on the token after the previous occurrence of the current token; decoders only"""
    control: float | None = None
    """weight on the same positions in text without repetition, as a control for the induction score"""
    rise: float | None = None
    """loss increase in nats when the head is ablated"""
    rise_interval: Interval | None = None
    """95 % t interval of the loss increase over rows"""
    copies: bool | None = None
    """whether it is an induction head"""
    idle: bool | None = None
    """whether ablating it changes nothing"""


class AttentionFile(VersionedRecord):
    """attention.json: measures of every attention head; transformers built from parts only"""

    split: str
    """split the heads were measured on"""
    rows: NonNegativeInt
    """number of rows"""
    heads: list[HeadMeasures]
    """measures of each head"""


class AttentionMapsFile(Record):
    """maps.json: the text that maps.safetensors shows"""

    text: str
    """input text"""
    tokens: list[str]
    """tokens of the input"""


class ModelConfigFile(Record):
    """config.json: the model, in the layout of Hugging Face"""

    trial: Trial
    """settings of the trial that trained the model"""
    id2label: dict[str, str]
    """class names by index"""
    vocab_size: Annotated[int, Field(ge=1, le=2**31)]
    """tokens in the vocabulary"""
