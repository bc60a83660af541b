"""What prompts and templates must be."""

from collections.abc import Sequence


def check_prompt(prompt: Sequence[int], mask_id: int, *, row: int) -> None:
    """Raises ValueError if a prompt is empty or contains the mask id."""
    if not len(prompt):
        raise ValueError(
            f"A prompt has at least one token, got an empty one in row {row}; "
            "start it with the tokenizer's beginning-of-text token."
        )
    if mask_id in prompt:
        raise ValueError(
            f"A prompt must not contain the mask id {mask_id}, got it in row {row}; "
            "to fill in between fixed tokens, pass them in `templates`."
        )


def check_template(template: Sequence[int], gen_length: int, *, row: int) -> None:
    """Raises ValueError if a template is longer than the answer."""
    if len(template) > gen_length:
        raise ValueError(
            f"A template has at most gen_length={gen_length} tokens, "
            f"got {len(template)} in row {row}."
        )


def check_number(num_templates: int, num_prompts: int) -> None:
    """Raises ValueError unless there is no template, or one for each prompt."""
    if num_templates not in (0, num_prompts):
        raise ValueError(
            f"templates holds one answer per prompt, {num_prompts}, got {num_templates}."
        )


def check_templates(templates: Sequence[Sequence[int]], num_prompts: int, gen_length: int) -> None:
    """Raises ValueError unless there is none, or one for each prompt, and none is too long."""
    if gen_length < 1:
        raise ValueError(f"gen_length is at least 1 token, got {gen_length}.")
    check_number(len(templates), num_prompts)
    for row, template in enumerate(templates):
        check_template(template, gen_length, row=row)
