"""Checks that no module of the user replaces one of our packages, which have common names."""

import importlib.util
from pathlib import Path


def require_own(name: str) -> None:
    """Raises ImportError with an explanation if Python finds another module of that name first."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    expected = (Path(__file__).parents[1] / name).resolve()
    if not any(Path(place).resolve() in (expected, expected / "__init__.py") for place in places):
        raise ImportError(
            f"dllm_decode needs its own package {name}, got {', '.join(places)}, which Python "
            f"finds first. Rename it, or run from another folder and without it in PYTHONPATH."
        )
