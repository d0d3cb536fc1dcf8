"""Verdicts on scores from other sources: tables of scores, and the checks that their pairs need."""
