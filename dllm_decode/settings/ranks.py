"""Reads the ranks of the processes of a launch; loads no torch."""

import os
from dataclasses import dataclass

_LAUNCH_VARIABLES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
}


@dataclass(frozen=True)
class ProcessRank:
    """The rank of this process; `local_rank` counts only the processes of its machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @staticmethod
    def of_launch() -> "ProcessRank":
        """Reads the ranks that `accelerate launch`, `torchrun` or `mpirun` gives each process.

        Raises ValueError if there is no rank, or one that is not below the number of processes.
        """
        ranks = {}
        for field_name, variables in _LAUNCH_VARIABLES.items():
            name = next((name for name in variables if name in os.environ), None)
            if name is None:
                continue
            if not os.environ[name].isdecimal():
                raise ValueError(f"{name} must be a whole number, got {os.environ[name]!r}.")
            ranks[field_name] = int(os.environ[name])
        process = ProcessRank(**ranks)
        if process.world_size > 1 and "rank" not in ranks:
            raise ValueError(
                f"RANK must be set too, got {process.world_size} processes without one."
            )
        if process.rank >= process.world_size:
            raise ValueError(
                "The environment must give the rank of a process below the number of processes, "
                f"got rank {process.rank} of {process.world_size}. Unset RANK, or set WORLD_SIZE "
                "too."
            )
        return process


ALONE = ProcessRank()
