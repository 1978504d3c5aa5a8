"""Mutations of how quantized checkpoints are read."""

from __future__ import annotations

from tests.mutations.mutation import Family, Mutation

_LAYERS = "model_backend/layers/quantized"
_TESTS = ("checkpoint/quantization/test_read.py", "model_backend/platforms/cpu/linear/test_checkpoint_linear.py")
_WORDS = f"{_LAYERS}/packed_words.py"
_GPTQ = f"{_LAYERS}/gptq.py"
_COMPRESSED = f"{_LAYERS}/compressed.py"

_HALVES = Mutation(
    "the upper half of a byte comes first", _WORDS, "(whole & 15, whole >> 4)", "(whole >> 4, whole & 15)"
)

FAMILIES: dict[str, Family] = {
    "awq": Family(
        _TESTS,
        "awq",
        (
            _HALVES,
            Mutation(
                "a word's outputs are in ascending order",
                f"{_LAYERS}/awq.py",
                "(0, 4, 1, 5, 2, 6, 3, 7)",
                "(0, 1, 2, 3, 4, 5, 6, 7)",
            ),
            Mutation(
                "the order of a word is the inverse one",
                f"{_LAYERS}/awq.py",
                "(0, 4, 1, 5, 2, 6, 3, 7)",
                "(0, 2, 4, 6, 1, 3, 5, 7)",
            ),
        ),
    ),
    "gptq": Family(
        _TESTS,
        "gptq",
        (
            _HALVES,
            Mutation(
                "zero points of version 1 are as stored",
                "checkpoint/quantization/integer_formats.py",
                '{"gptq": 1, "gptq_v2": 0}',
                '{"gptq": 0, "gptq_v2": 0}',
            ),
            Mutation(
                "zero points of version 2 are one more",
                "checkpoint/quantization/integer_formats.py",
                '{"gptq": 1, "gptq_v2": 0}',
                '{"gptq": 1, "gptq_v2": 1}',
            ),
            Mutation(
                "a wrongly named version is believed", _GPTQ, "if not self._scheme.zero_points and", "if False and"
            ),
            Mutation(
                "codes stay in the order of the inputs",
                _GPTQ,
                "codes = codes[:, order]",
                "codes = codes[:, order.sort().values]",
            ),
            Mutation(
                "inputs are ordered by their groups' inverse",
                f"{_LAYERS}/input_order.py",
                "return order",
                "return order.argsort()",
            ),
        ),
    ),
    "packed": Family(
        _TESTS,
        "packed",
        (
            _HALVES,
            Mutation(
                "codes of 4 bits are centred at 7", _COMPRESSED, "1 << scheme.bits - 1", "(1 << scheme.bits - 1) - 1"
            ),
            Mutation(
                "zero points are packed along the groups",
                _COMPRESSED,
                "unpacked(self._zeros.T, scheme.bits).flatten(1)",
                "unpacked(self._zeros, scheme.bits).transpose(0, 2).flatten(1)",
            ),
        ),
    ),
    "int8": Family(
        _TESTS,
        "int8 or rounded",
        (
            Mutation(
                "codes are not signed",
                _COMPRESSED,
                "self._weight.view(torch.uint8) ^ 128",
                "self._weight.view(torch.uint8)",
            ),
            Mutation("zero points are one more", _COMPRESSED, "zeros + 128", "zeros + 129"),
            Mutation(
                "inputs stay as they are",
                _COMPRESSED,
                "rounds_inputs=self._scheme.rounds_inputs",
                "rounds_inputs=False",
            ),
        ),
    ),
    "fp8": Family(
        _TESTS,
        "fp8 or float8",
        (
            Mutation(
                "all matrices of a layer have the last one's scale",
                f"{_LAYERS}/per_matrix.py",
                "found[shard.rows] = rows\n                continue",
                "found[:] = rows\n                continue",
            ),
            Mutation(
                "scales divide",
                _COMPRESSED,
                "return QuantizedMatrix(codes, scales, torch.zeros_like",
                "return QuantizedMatrix(codes, 1 / scales, torch.zeros_like",
            ),
            Mutation(
                "stacks of experts need no whole blocks",
                "model_backend/loader/quantized.py",
                "any(size % height for size in matrix)",
                "False",
            ),
            Mutation(
                "all experts of a stack are its first one",
                "model_backend/loader/stored_parts.py",
                "stored[self.expert : self.expert + 1, *windows",
                "stored[:1, *windows",
            ),
        ),
    ),
}
