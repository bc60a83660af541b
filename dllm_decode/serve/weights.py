"""New weights for a running server, from folders below a root folder."""

import asyncio
import json
import logging
from pathlib import Path, PurePath

from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.lanes import FullError
from dllm_decode.serve.request_fields import Weights
from dllm_decode.serve.request_parts import Json
from dllm_decode.serve.service import Channel, Service

_LOG = logging.getLogger(__name__)


async def replace(service: Service, root: Path, asked: Weights, channel: Channel) -> Json:
    """Waits until the model has the weights of a folder, and returns their version.

    Raises:
        RefusedError: If the folder is not below the root or its weights do not fit (nothing is
            changed then), other weights are being loaded, or the deadline has passed.
    """
    folder = await asyncio.to_thread(_folder_below, root, asked.folder)
    try:
        changing = service.runner.load_weights(folder)
        version = await channel.within(asyncio.wrap_future(changing))
    except FullError:
        message = "Other weights are being loaded, or the server ends. Try again later."
        raise RefusedError(409, message, code="weights_busy") from None
    except (ValueError, OSError) as error:
        _LOG.warning("Weights were refused: %s", error)
        message = str(error).replace(str(folder), asked.folder)
        raise RefusedError(400, message, param="folder", code="invalid_weights") from None
    _LOG.info("The model has the weights %s of %s.", version, folder)
    return {"object": "weights", "model": service.name, "version": version}


def _folder_below(root: Path, name: str) -> Path:
    """Returns a folder below a root, with links resolved.

    Raises:
        RefusedError: If there is no such folder, or a part of the folder is outside the root.
    """
    root, path = root.resolve(), PurePath(name)
    if path.parts and not path.is_absolute() and ".." not in path.parts:
        # A name may be too long, have a null character or be a loop of links.
        try:
            folder = (root / path).resolve()
            if folder.is_dir() and all(
                entry.resolve().is_relative_to(root) for entry in (folder, *folder.rglob("*"))
            ):
                return folder
        except (OSError, RuntimeError, ValueError):
            pass
    message = (
        "'folder' must be the path of a folder from the server's --weights-root on, without '..' "
        f"and without links that lead outside, got {json.dumps(name)[:80]}."
    )
    raise RefusedError(400, message, param="folder", code="invalid_folder")
