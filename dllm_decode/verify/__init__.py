"""Verifiers: how one round advances the canvas."""

from dllm_decode.verify.base import NoVerifier, Verifier

__all__ = ["NoVerifier", "Verifier"]
