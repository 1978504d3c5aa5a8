"""In place of FlashInfer: its wrappers' signatures, and attention in plain torch from what they were told."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class _Wrapper:
    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        *,
        backend: str = "auto",
    ) -> None:
        assert float_workspace_buffer.dtype is torch.uint8
        assert kv_layout == "NHD"
        assert not use_cuda_graph
        self.use_tensor_cores = use_tensor_cores
        self.num_plans = 0

    def _planned(self, queries: torch.Tensor, pages: tuple[torch.Tensor, ...], sizes: tuple[int, ...]) -> None:
        indptr, indices, last_page_len = pages
        assert all(each.dtype is torch.int32 for each in (queries, *pages))
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert (indptr.diff() > 0).all()
        assert ((last_page_len >= 1) & (last_page_len <= sizes[3])).all()
        self.num_plans += 1
        self._queries, self._pages, self._sizes = queries, pages, sizes

    def _run(self, q: torch.Tensor, paged_kv_cache: Any, out: torch.Tensor) -> None:
        keys, values = paged_kv_cache
        num_heads, num_kv_heads, dim, page_size = self._sizes
        assert q.is_contiguous()
        assert q.shape[1:] == (num_heads, dim)
        assert keys.shape == values.shape
        assert keys.stride() == values.stride()
        assert keys.shape[1:] == (page_size, num_kv_heads, dim)
        indptr, indices, last_page_len = self._pages
        for chunk in range(len(last_page_len)):
            pages = indices[indptr[chunk] : indptr[chunk + 1]].long()
            length = (len(pages) - 1) * page_size + int(last_page_len[chunk])
            rows = slice(int(self._queries[chunk]), int(self._queries[chunk + 1]))
            k, v = (each[pages].flatten(0, 1)[:length].transpose(0, 1) for each in (keys, values))
            own = torch.arange(length - (rows.stop - rows.start), length)[:, None]
            seen = torch.arange(length) <= own
            if self._window_left >= 0:
                seen &= torch.arange(length) >= own - self._window_left
            group = num_heads // num_kv_heads
            out[rows] = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1),
                k.repeat_interleave(group, 0),
                v.repeat_interleave(group, 0),
                seen,
                scale=self._scale,
            ).transpose(0, 1)

    _window_left = -1
    _scale: float | None = None


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        sm_scale: float | None = None,
    ) -> None:
        queries = torch.arange(len(indptr), dtype=torch.int32)
        self._window_left, self._scale = window_left, sm_scale
        self._planned(queries, (indptr, indices, last_page_len), (num_qo_heads, num_kv_heads, head_dim, page_size))

    def run(self, q: torch.Tensor, paged_kv_cache: Any, *, out: torch.Tensor) -> None:
        self._run(q, paged_kv_cache, out)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        assert causal
        self._window_left, self._scale = window_left, sm_scale
        pages = paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len
        self._planned(qo_indptr, pages, (num_qo_heads, num_kv_heads, head_dim_qk, page_size))

    def run(self, q: torch.Tensor, paged_kv_cache: Any, *, out: torch.Tensor) -> None:
        self._run(q, paged_kv_cache, out)
