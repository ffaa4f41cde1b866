"""Published bytes against what the closed forms say: ``memory_results`` reads every file of them in a folder.

Nothing was fitted to any of these tables, so all their rows are reported.
"""

from cost_models.validation.memory.tables import MEMORY_TABLES, MemoryTable, memory_results

__all__ = ["MEMORY_TABLES", "MemoryTable", "memory_results"]
