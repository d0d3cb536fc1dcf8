"""One optimizer step: the gradients of a batch, loss scaling, the Hessian estimate, and the scheduled optimizer."""
