"""The paged cache of keys and values: the only state of a request besides its tokens.

A sequence reserves every page that it may ever need when it is admitted, so a running answer never runs out of
memory. A free list hands pages out; their order and size change no bit of any answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.errors import ConfigError
from colibri.kernels.api import Array, ComputeMode, KvView

PAGE_SIZES = (8, 16, 32, 64)


class PageAllocator:
    """A free list of pages, each with its number of holders. Only the engine's thread uses it."""

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self._holders: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Takes `count` pages. Returns None, and takes nothing, if fewer are free."""
        if count < 0:
            raise ValueError(f"count: expected at least 0, got {count}")
        if count > len(self._free):
            return None
        pages = tuple(self._free.pop() for _ in range(count))
        self._holders.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Adds a holder to each page. Raises ValueError, and changes nothing, for a page that is not taken."""
        self._check_taken(pages)
        for page in pages:
            self._holders[page] += 1

    def give_back(self, pages: Sequence[int]) -> None:
        """Removes a holder from each page; the last one frees it.

        Raises ValueError, and changes nothing, for a page that is not taken or named twice.
        """
        self._check_taken(pages)
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._free.append(page)

    def _check_taken(self, pages: Sequence[int]) -> None:
        if len(set(pages)) != len(pages) or not self._holders.keys() >= set(pages):
            raise ValueError(f"pages: expected pages that are taken, each once, got {list(pages)}")


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of one model's cache. page: positions of a page; tokens: capacity, rounded down to whole pages."""

    layers: int
    kv_heads: int
    head_dim: int
    page: int
    tokens: int

    def __post_init__(self) -> None:
        if self.page not in PAGE_SIZES:
            raise ConfigError("kv_page", f"one of {PAGE_SIZES}", self.page)
        if self.tokens < self.page:
            raise ConfigError("kv_tokens", f"at least one page ({self.page})", self.tokens)

    @property
    def pages(self) -> int:
        return self.tokens // self.page

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page)


class KvCache:
    """K and V of all layers, each [pages, kv_heads, page, head_dim], fp32 or (bf16 mode) bf16. Memory is committed on
    use.
    """

    def __init__(self, shape: KvShape, mode: ComputeMode) -> None:
        dtype = np.uint16 if mode is ComputeMode.BF16 else np.float32
        block = (shape.layers, shape.pages, shape.kv_heads, shape.page, shape.head_dim)
        try:
            self._k: list[Array] = list(np.zeros(block, dtype=dtype))
            self._v: list[Array] = list(np.zeros(block, dtype=dtype))
        except (MemoryError, ValueError) as error:  # ValueError: no address space holds it
            raise ConfigError(
                "kv_tokens", "a cache that memory can hold", f"{shape.tokens} ({error})"
            ) from error
        self.shape = shape
        self.pages = PageAllocator(shape.pages)

    @property
    def nbytes(self) -> int:
        """Bytes when every page has been used."""
        return sum(array.nbytes for array in (*self._k, *self._v))

    def pages_for(self, tokens: int, prompt: int, choices: int) -> int:
        """Returns how many pages `reserve` takes."""
        each, shared = self.shape.pages_for(tokens), prompt // self.shape.page
        return each + (choices - 1) * (each - shared)

    def reserve(self, tokens: int, prompt: int = 0, choices: int = 1) -> list[NDArray[np.int32]] | None:
        """Takes pages for `tokens` positions of each choice; None if the cache is too full now.

        All choices share the pages that `prompt` tokens fill.
        """
        pages = self.pages.take(self.pages_for(tokens, prompt, choices))
        if pages is None:
            return None
        each, shared = self.shape.pages_for(tokens), prompt // self.shape.page
        found = [np.array(pages[:each], dtype=np.int32)]
        for at in range(each, len(pages), each - shared):
            self.pages.share(pages[:shared])
            found.append(np.array(pages[:shared] + pages[at : at + each - shared], dtype=np.int32))
        return found

    def copy_page(self, source: int, target: int) -> None:
        """Copies K and V of all layers from one page to another."""
        for array in (*self._k, *self._v):
            array[target] = array[source]

    def release(self, pages: NDArray[np.int32]) -> None:
        self.pages.give_back(pages.tolist())

    @staticmethod
    def page_table(sequences: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
        """Returns int32 [sequences, most pages of any], filled with -1, which no kernel accepts."""
        table = np.full((len(sequences), max(map(len, sequences), default=0)), -1, dtype=np.int32)
        for row, pages in zip(table, sequences, strict=True):
            row[: len(pages)] = pages
        return table

    def views(
        self, table: NDArray[np.int32], row_sequence: NDArray[np.int32], positions: NDArray[np.int32]
    ) -> list[KvView]:
        """Returns one view per layer over the same page table and rows. Made once per step."""
        return [KvView(k, v, table, row_sequence, positions) for k, v in zip(self._k, self._v, strict=True)]
