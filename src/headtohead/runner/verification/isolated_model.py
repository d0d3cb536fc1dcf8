"""A child process that predicts one token at a time: `python -m headtohead.runner.verification.isolated_model FOLDER`.

It receives a sequence one token at a time and responds to each token with the log-probabilities of the next one, so
model code cannot access a token before predicting it.
"""

from __future__ import annotations

import base64
import sys

import torch

from headtohead.child_process import ParentChannel
from headtohead.saved_models import model_io


@torch.inference_mode()
def main(folder: str) -> None:
    """Respond to {"token": id, "starts_text": bool} with the log-probabilities of a model in this isolated process.

    They are float32 values in base64: {"log_probs": ...}.
    """
    channel = ParentChannel()
    model = model_io.load_saved_model(folder).model
    token_ids: list[int] = []
    for request in channel.iter_requests():
        if request["starts_text"]:
            token_ids.clear()
        token_ids.append(request["token"])
        log_probs = model(torch.tensor([token_ids])).logits[0, -1].double().log_softmax(-1)
        encoded = base64.b64encode(log_probs.float().numpy().tobytes()).decode()
        channel.send({"request": request["request"], "log_probs": encoded})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
