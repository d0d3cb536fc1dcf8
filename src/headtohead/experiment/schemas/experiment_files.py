"""The files in an experiment's folder that belong to no single run: settings, corpus, teacher, teacher cache."""

from __future__ import annotations

from pydantic import JsonValue

from headtohead.audit.result import CheckResult
from headtohead.config.experiment import EqualTerm, Experiment
from headtohead.config.tables.model import ModelConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.experiment.schemas.base import NonNegativeInt, Pair, Record, VersionedRecord
from headtohead.experiment.schemas.run_files import SplitScores, TrainingSummary


class ResolvedBudget(Record):
    """The training budget of a variant, converted to steps before its first run"""

    settings: str
    """hash of the settings before the conversion"""
    budget: str
    """budget in the experiment file"""
    equal: EqualTerm | None
    """what the variant shares with the baseline"""
    steps: NonNegativeInt
    """training steps"""
    tokens_per_step: float
    """input tokens per step, without padding"""
    flops_per_step: float | None
    """FLOPs per step; null if they cannot be counted"""
    seconds_per_step: float | None = None
    """measured seconds per step; null unless the budget or the terms refer to time"""
    parameters: NonNegativeInt
    """parameters of the model"""
    resized: dict[str, int] = {}
    """sizes that were solved for equal parameters, by setting"""


class ExperimentFile(VersionedRecord):
    """experiment.json: the resolved experiment"""

    identity: str
    """hash of all inputs that determine the results"""
    experiment: Experiment
    """resolved settings"""
    budgets: dict[str, ResolvedBudget] = {}
    """budgets that were converted to steps, by variant"""
    corpus_digests: dict[str, str] = {}
    """hash of the corpus of each variant, the baseline included"""
    dependencies: dict[str, dict[str, str]] = {}
    """what each variant depends on: SHA-256 of code files, of data files that the code names and of the weights of
    other models, and the version of Head to Head; runs that used different ones are not judged"""
    versions: dict[str, str] = {}
    """versions of Python and of the main libraries"""
    command: list[str] = []
    """command line"""


class SplitRecord(Record):
    """One split of the corpus"""

    role: str
    """train, validation or test"""
    rows: NonNegativeInt
    """number of rows"""
    tokens: NonNegativeInt
    """number of tokens"""
    bytes: NonNegativeInt
    """size of the text in UTF-8"""
    unknown: float
    """fraction of tokens that the vocabulary does not contain"""
    documents: list[str] = []
    """names of the documents of a held-out split; empty if each row is its own document"""


class CorpusDescription(VersionedRecord):
    """The corpus without its audits"""

    origin: str
    """path or name of the source"""
    digest: str
    """hash of the text"""
    vocab_size: NonNegativeInt = 0
    """tokens in the vocabulary"""
    labels: list[str]
    """class names; empty without labels"""
    splits: dict[str, SplitRecord]
    """splits by name"""
    count_baselines: dict[str, dict[str, float]] = {}
    """accuracy of count-based classifiers: method: split: accuracy"""
    count_losses: dict[str, dict[str, float]] = {}
    """mean loss of language models that count tokens of the training data, in nats per token: model: split: loss"""
    lines_by_label: dict[str, dict[str, NonNegativeInt]] = {}
    """lines of each text that also occur under a label of the same source: split: label: count"""


class CorpusFile(CorpusDescription):
    """corpus.json: the corpus and its audits"""

    audits: list[CheckResult]
    """audits of the data"""
    unseen: dict[str, list[NonNegativeInt]]
    """indices of held-out rows that do not occur in train, by split; in no variant's train, if variants change it"""
    groups: dict[str, list[NonNegativeInt]] = {}
    """by split, for each row the first row that it repeats, or itself; rows of one group count as one example"""
    variant_audits: dict[str, list[CheckResult]] = {}
    """audits of the data of variants that change it"""


class TeacherSettings(Record):
    """Settings of a teacher trained here"""

    model: ModelConfig
    """model settings"""
    training: TrainingConfig | None = None
    """training settings; null if they are those of the students"""


class TeacherFile(VersionedRecord):
    """teacher.json: the teacher of a distillation on plain text"""

    name: str
    """name of the teacher"""
    digest: str
    """hash of the weights"""
    parameters: NonNegativeInt
    """number of parameters"""
    context: NonNegativeInt | None = None
    """context length in tokens"""
    training: TrainingSummary | None = None
    """duration, memory and outcome of training, for a teacher trained here"""
    scores: dict[str, SplitScores] = {}
    """scores by split, for a teacher trained here"""
    settings: TeacherSettings | None = None
    """settings, for a teacher trained here"""


class ReferenceDocument(Record):
    """A held-out document with its reference summaries"""

    id: str
    """identifier"""
    document: str
    """text"""
    references: list[str]
    """summaries written by people"""


class ReferenceModel(Record):
    """A model that no trial trains: the teacher, or the student before training"""

    name: str
    """name of the model"""
    digest: str
    """hash of the weights"""
    parameters: NonNegativeInt
    """number of parameters"""
    weights_bytes: NonNegativeInt
    """size of the weights in memory"""
    seconds_per_summary: float
    """duration of one summary, on one thread"""


class SummarizationTeacherFile(VersionedRecord):
    """teacher.json: teacher and held-out documents of a distillation on summaries"""

    signature: str
    """version and options of the ROUGE implementation"""
    documents: list[ReferenceDocument]
    """held-out documents"""
    num_truncated: dict[str, NonNegativeInt]
    """documents cut to the context, by split"""
    num_excluded: dict[str, NonNegativeInt]
    """documents excluded, by split"""
    strategy: str
    """decoding strategy"""
    teacher: ReferenceModel
    """the teacher"""
    untrained: ReferenceModel
    """the student before training"""


class SummaryLine(Record):
    """summaries.jsonl: the summary of one held-out document"""

    id: str
    """identifier of the document"""
    text: str
    """generated summary"""
    stop_reason: str
    """token (stop token) or length (limit reached)"""
    rouge: dict[str, float]
    """F1 by measure: rouge-1, rouge-2, rouge-l, rouge-lsum"""
    length: NonNegativeInt
    """number of words"""
    copied: dict[str, Pair]
    """numbers of n-grams that occur in the document, and of all n-grams: copied-2, copied-4"""


class TeacherCacheFile(VersionedRecord):
    """teacher.json of a teacher cache: the teacher whose outputs are cached"""

    name: str
    """name of the teacher"""
    digest: str
    """hash of the weights"""
    settings: dict[str, JsonValue]
    """settings the outputs depend on"""


class TeacherTextLine(Record):
    """texts.jsonl of a teacher cache: one generated text"""

    key: str
    """hash of the prompt"""
    ids: list[int] = []
    """generated token ids"""
    text: str = ""
    """generated text"""
    stop_reason: str = ""
    """token (stop token) or length (limit reached)"""
    seconds: float = 0.0
    """generation time"""
    checksum: str = ""
    """SHA-256 of the rest of the line"""


class LogitsBlockLine(Record):
    """logits.jsonl of a teacher cache: location of one block of logits"""

    key: str
    """hash of the row"""
    offset: NonNegativeInt
    """first byte of the block"""
    positions: NonNegativeInt
    """number of positions"""
    sha256: str | None = None
    """checksum of the block"""
    checksum: str = ""
    """SHA-256 of the rest of the line"""
