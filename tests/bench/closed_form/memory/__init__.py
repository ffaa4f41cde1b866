"""Published bytes against what the closed forms say: ``memory_results`` reads every file of them in a folder.

Nothing was fitted to any of these tables, so all their rows are reported. Modules, each importing only those before it:

    analytic    tables that are formulas
    megatron    Megatron-LM's continuous integration
    torchtitan  torchtitan's reserved memory
    alpa        Alpa's GPT on V100s
    tables      all of them, as points
"""

from tests.bench.closed_form.memory.tables import MEMORY_TABLES, MemoryTable, memory_results

__all__ = ["MEMORY_TABLES", "MemoryTable", "memory_results"]
