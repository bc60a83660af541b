"""Finds the folder of a model: an embedded one, a path, or a download from the hub."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from dllm_decode.core.files import finish_files
from dllm_decode.models.loading.json_files import read_json

ASSETS = Path(__file__).parents[2] / "assets"
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
_CONFIG_FILES = (
    "config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"
)  # fmt: skip


def find_model(source: str | Path, revision: str | None = None) -> Path:
    """Returns the folder of an embedded model, of a path or of a download; see `load_model`.

    Raises:
        FileNotFoundError: If there is no such model.
        OSError: If the model cannot be downloaded.
        ValueError: If the source is in GGUF, or a revision is passed with a source on this disk.
    """
    folder = find_on_disk(source, revision)
    return _download(str(source), revision) if folder is None else folder


def find_config(source: str | Path, revision: str | None = None) -> Path:
    """Returns a folder with the configuration of a model; downloads nothing but that."""
    folder = find_on_disk(source, revision)
    return _download(str(source), revision, _CONFIG_FILES) if folder is None else folder


def find_on_disk(source: str | Path, revision: str | None = None) -> Path | None:
    """Returns the folder of an embedded model or of a path; `None` for a hub id.

    Raises:
        FileNotFoundError: If the source is none of these.
        ValueError: If the source is in GGUF, or a revision is passed with a source on this disk.
    """
    embedded = sorted(path.parent.name for path in ASSETS.glob("*/config.json"))
    # An empty text would be the folder that Python runs in.
    is_path = isinstance(source, str | os.PathLike) and source != ""
    is_embedded, is_folder = str(source) in embedded, is_path and Path(source).is_dir()
    if revision is not None and (is_embedded or is_folder):
        raise ValueError(
            f"revision must be left out with {str(source)!r}, which is "
            f"{'an embedded model' if is_embedded else 'a folder'}; only a hub id has revisions, "
            f"got {revision!r}."
        )
    if is_embedded:
        return ASSETS / str(source)
    if is_path and (str(source).lower().endswith("gguf") or _has_gguf_alone(Path(source))):
        raise ValueError(
            f"Weights must be safetensors files, got GGUF in {str(source)!r}, which cannot be "
            "read. Pass the checkpoint that it was made from; quantize='int4' loads that in 4 bits."
        )
    if is_folder:
        finish_files(Path(source))
        return Path(source)
    if isinstance(source, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", source):
        return None
    close_names = get_close_matches(str(source), embedded, n=1)
    raise FileNotFoundError(
        f"A model is a folder, a hub id such as 'GSAI-ML/LLaDA-8B-Instruct', or an embedded name "
        f"({', '.join(embedded) or 'none is installed'}), got "
        f"{str(source) if is_path else source!r}, which is none of these. "
        f"{f'Did you mean {close_names[0]!r}?' if close_names else 'Check the path.'}"
    )


def _has_gguf_alone(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors"))


def _download(hub_id: str, revision: str | None, files: Sequence[str] = _HUB_FILES) -> Path:
    """Returns the folder of a repository: in the cache if it is complete there, else downloaded.

    Without a network, asking the hub about cached files would take up to 24 seconds.
    """
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, hub_id, revision=revision, allow_patterns=list(files))
    named = repr(hub_id) if revision is None else f"{hub_id!r} with revision={revision!r}"
    with suppress(OSError, ValueError):
        cached = Path(fetch(local_files_only=True))
        is_config = files is _CONFIG_FILES and (cached / "config.json").is_file()
        if is_config or _has_weights(cached):
            return cached
    try:
        return Path(fetch(local_files_only=False))
    except (OSError, ValueError) as error:
        raise OSError(
            f"{named} is not a folder here, and could not be downloaded from the hub "
            f"({type(error).__name__}). Connect to the network (and log in, if the repository is "
            "private), or download the repository elsewhere and pass the path of its folder."
        ) from None


def _has_weights(folder: Path) -> bool:
    """Returns whether a download has all weight files, and is not of the tokenizer alone."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    places = read_json(index).get("weight_map")
    names = places.values() if isinstance(places, dict) else ()
    return all((folder / str(name)).is_file() for name in names)
