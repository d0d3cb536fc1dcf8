"""The conformance suite for parts; `headtohead.testing` is its public interface."""
