"""Calibrate the verdicts: how often is a 95 % interval wrong, on synthetic and on real data?

`make calibration` trains thousands of tiny models, simulates experiments whose truth is known, judges them with the
package's own rule, and writes docs/calibration.md. Every study caches its results, so an interrupted run continues.
"""
