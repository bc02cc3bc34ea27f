"""What can go wrong in the lab.

LabError        the lab could not do it; the text says why (exit 1)
  MissingRight  the machine lacks a right or a program; the text says which, and what to do (exit 2)
"""

from __future__ import annotations


class LabError(Exception):
    exit_code = 1


class MissingRight(LabError):
    exit_code = 2
