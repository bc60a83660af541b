"""The command `lm`: tasks of the Language Model Evaluation Harness."""

import argparse
import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dllm_decode.core.files import finish_files, new_files
from dllm_decode.settings.files import require_folder_or_new
from dllm_decode.settings.models import open_model
from eval.lm_harness.answer_costs import records_of
from eval.lm_harness.settings import settings_of

if TYPE_CHECKING:
    from eval.lm_harness.model import DecodeLM

RESULTS_FILE = "results.json"
COST_FILE = "cost.jsonl"


def run(options: argparse.Namespace) -> int:
    """Runs the harness, in every process, and shows the results in the first one.

    Raises:
        OSError: If the model or a task's examples are not there.
        ValueError: If lm-eval is not installed, or something does not fit.
    """
    if find_spec("lm_eval") is None:
        raise ValueError(
            "This command needs the Language Model Evaluation Harness, which is not installed; "
            'install it with: pip install ".[lm-eval]", in the clone of this repository.'
        )
    from eval.lm_harness.model import DecodeLM

    options.tasks = [name for name in map(str.strip, options.tasks.split(",")) if name]
    if not options.tasks:
        raise ValueError("--tasks must name at least one task, got none.")
    if options.output:
        options.output = Path(options.output)
        require_folder_or_new(options.output)
        finish_files(options.output)
        if (options.output / RESULTS_FILE).exists():
            raise ValueError(f"{options.output} holds results already; choose another folder.")
    manager = _task_manager(options.tasks, options.include_path)
    loaded = open_model(options.model, options, options.revision)
    lm = DecodeLM(loaded.model, loaded.tokenizer, settings_of(options, loaded))
    try:
        results = _evaluate(lm, options, manager)
    finally:
        lm.close()
    if results is not None:
        _show(results, lm, options)
    return 0


def _evaluate(lm: "DecodeLM", options: argparse.Namespace, manager: Any) -> dict[str, Any] | None:
    from lm_eval import simple_evaluate

    results: dict[str, Any] | None = simple_evaluate(
        model=lm,
        model_args={"pretrained": options.model},
        tasks=options.tasks,
        num_fewshot=options.num_fewshot,
        limit=options.limit,
        use_cache=f"{path}-{lm.settings.fingerprint()}" if (path := options.use_cache) else None,
        system_instruction=options.system_instruction,
        apply_chat_template=options.apply_chat_template,
        fewshot_as_multiturn=options.apply_chat_template,
        task_manager=manager,
        confirm_run_unsafe_code=options.confirm_run_unsafe_code,
    )
    return results


def _task_manager(tasks: list[str], include_path: str | None) -> Any:
    """Finds the tasks; the harness' own thousands are listed only if they are needed."""
    from lm_eval.tasks import TaskManager

    if include_path is not None and not Path(include_path).is_dir():
        raise ValueError(f"include_path must be a folder with task files, got {include_path!r}.")
    for include_defaults in (False, True) if include_path else (True,):
        manager = TaskManager(include_path=include_path, include_defaults=include_defaults)
        missing = [name for name in tasks if not manager.match_tasks([name])]
        if not missing:
            return manager
    raise ValueError(
        f"Tasks must be known to the harness, got {', '.join(missing)}. Put task files of your own "
        "in a folder and name it with --include-path."
    )


def _show(results: dict[str, Any], lm: "DecodeLM", options: argparse.Namespace) -> None:
    from lm_eval.utils import handle_non_serializable, make_table

    def text(value: object, indent: int | None = None) -> str:
        return json.dumps(value, indent=indent, default=handle_non_serializable) + "\n"

    samples = results.pop("samples", {})
    parts = [make_table(results)]
    parts += [make_table(results, "groups")] if results.get("groups") else []
    if cost := results["config"]["cost"]:
        parts.append(f"cost: {text(cost)}")
    say = partial(Console().print, markup=False, highlight=False, soft_wrap=True)
    for part in parts:
        say(part)
    if options.output:
        contents = {
            f"samples_{task.replace('/', '__')}.jsonl": "".join(map(text, lines))
            for task, lines in samples.items()
        }
        contents[COST_FILE] = "".join(map(text, records_of(lm.ledger)))
        contents[RESULTS_FILE] = text(results, 1)
        with new_files(options.output, contents) as written:
            for name, content in contents.items():
                (written / name).write_text(content, encoding="utf-8")
        say(f"Results: {options.output / RESULTS_FILE}")
