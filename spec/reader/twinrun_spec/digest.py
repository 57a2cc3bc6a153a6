"""spec/digest.md, section by section."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

P = 2**61 - 1
BLOCK_BYTES = 4096
SMALLEST_CHUNK = 4096
LARGEST_CHUNK = 2**20
LINE_BYTES = 64
TOKEN_LIMIT = 2**59
EXACT_INTEGER = 2**53
SMALLEST_SUM = 2.0**-1000
MASK64 = 2**64 - 1

Number = int | float


# ---- 2. element types ----


@dataclass(frozen=True)
class DType:
    number: int
    name: str
    item_bytes: int
    pair: int = 1  # scalars an item
    form: str = "float"  # of a scalar: float, bfloat, signed, unsigned, bool

    @property
    def scalar_bytes(self) -> int:
        return self.item_bytes // self.pair

    @property
    def block_scalars(self) -> int:
        return BLOCK_BYTES // self.scalar_bytes


DTYPES = {
    d.number: d
    for d in (
        DType(1, "f16", 2),
        DType(2, "bf16", 2, form="bfloat"),
        DType(3, "f32", 4),
        DType(4, "f64", 8),
        DType(5, "i8", 1, form="signed"),
        DType(6, "i16", 2, form="signed"),
        DType(7, "i32", 4, form="signed"),
        DType(8, "i64", 8, form="signed"),
        DType(9, "u8", 1, form="unsigned"),
        DType(10, "u16", 2, form="unsigned"),
        DType(11, "u32", 4, form="unsigned"),
        DType(12, "u64", 8, form="unsigned"),
        DType(13, "bool", 1, form="bool"),
        DType(14, "c64", 8, pair=2),
        DType(15, "c128", 16, pair=2),
    )
}
BY_NAME = {d.name: d for d in DTYPES.values()}


def scalars(raw: bytes, dtype: DType, byte_order: str = "little") -> list[Number]:
    """The numbers that densely packed items stand for: int for integers and bool, float for the rest."""
    size = dtype.scalar_bytes
    if dtype.form == "float":
        letter = {2: "e", 4: "f", 8: "d"}[size]
        return [v for (v,) in struct.iter_unpack(("<" if byte_order == "little" else ">") + letter, raw)]
    words = [int.from_bytes(raw[i : i + size], byte_order) for i in range(0, len(raw), size)]
    if dtype.form == "bfloat":
        return [struct.unpack("<f", struct.pack("<I", w << 16))[0] for w in words]
    if dtype.form == "signed":
        return [w - (1 << 8 * size) if w >> (8 * size - 1) else w for w in words]
    if dtype.form == "bool":
        return [int(w != 0) for w in words]
    return words


# ---- 3. mixing and tokens ----


def splitmix64(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


SEEDS = (0x4E614E, 0x2B496E66, 0x2D496E66)
NAN_TOKEN, POSITIVE_INFINITY_TOKEN, NEGATIVE_INFINITY_TOKEN = (splitmix64(seed) for seed in SEEDS)


def bits_of(x: float) -> int:
    return struct.unpack("<Q", struct.pack("<d", x))[0]


def token(x: Number) -> int:
    if isinstance(x, int) and abs(x) > EXACT_INTEGER:
        return splitmix64(splitmix64(x & MASK64))
    x = float(x)
    if math.isnan(x):
        return NAN_TOKEN
    if math.isinf(x):
        return POSITIVE_INFINITY_TOKEN if x > 0 else NEGATIVE_INFINITY_TOKEN
    bits = bits_of(x)
    if bits in SEEDS:
        return splitmix64(splitmix64(bits))
    return splitmix64(0 if x == 0 else bits)


# ---- 4. rules ----


@dataclass(frozen=True)
class Rule:
    kind: str = "tokens"  # tokens, absolute, relative, binary32, words, integers
    residue_bits: int = 0
    coarse_shift: int = 0
    widest: int = 0
    fine_exponent: int = 0
    key_origin: float = 0.0


BINARY32 = ("f16", "bf16", "f32", "c64")  # dtypes whose scalars are binary32 values


def exact_kind(dtype: DType) -> str:
    """How scalars stand for themselves under an exact rule of version 4."""
    return "binary32" if dtype.name in BINARY32 else "words" if dtype.scalar_bytes == 8 else "integers"


def rule_of(dtype: DType, atol: float, rtol: float, residue_bits: int, version: int = 4) -> Rule:
    """The rule that a writer of this version takes for this dtype."""
    rule = rule_for(atol, rtol, residue_bits)
    kind = exact_kind(dtype)
    if rule.kind != "tokens" or version < (3 if kind == "binary32" else 4):
        return rule
    return Rule(kind)


def rule_for(atol: float, rtol: float, residue_bits: int) -> Rule:
    for tolerance in (atol, rtol):
        if not (tolerance >= 0 and math.isfinite(tolerance)):
            raise ValueError("tolerances must be finite and not negative")
    if residue_bits not in (0, 2, 4):
        raise ValueError("residue bits must be 0, 2 or 4")
    if rtol > 0:
        distance = widest_key_distance(rtol)
        try:
            origin = atol / rtol if atol > 0 else 0.0
        except OverflowError:
            origin = math.inf
        if distance >= 0 and math.isfinite(origin):
            return _relative_rule(distance, origin, residue_bits)
    return _absolute_rule(Fraction(atol), residue_bits) if atol > 0 else Rule()


def _absolute_rule(atol: Fraction, residue_bits: int) -> Rule:
    coarse = floor_log2(atol)
    half = 1 << (residue_bits - 1) if residue_bits else 1
    best, best_share = None, Fraction(-1)
    for k in range(residue_bits + 1):
        r = atol / two_to(coarse - k)
        widest = min(math.floor(r) - 1, half - 1)
        if widest / r > best_share:
            best, best_share = Rule("absolute", residue_bits, k, widest, coarse - k), widest / r
    assert best is not None
    return best


def widest_key_distance(rtol: float) -> int:
    return math.floor(rtol / (1.0 + 2.0 * rtol) * 2.0**52) - 4


def _key_cells(distance: int, residue_bits: int) -> tuple[int, int]:
    half = (1 << (residue_bits - 1)) - 1 if residue_bits else 0
    candidates = []
    for m in range(60):
        widest = min(((distance + 1) >> m) - 1, half)
        if widest >= 0:
            candidates.append((widest << m, m, widest))
    _, m, widest = max(candidates)
    return m, widest


def _relative_rule(distance: int, origin: float, residue_bits: int) -> Rule:
    m, widest = _key_cells(distance, residue_bits)
    coarse, _ = _key_cells(distance, 0)
    return Rule("relative", residue_bits, coarse - m, widest, m, origin)


def two_to(e: int) -> Fraction:
    return Fraction(2**e) if e >= 0 else Fraction(1, 2**-e)


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if two_to(e) <= x else e - 1


# ---- 5. cells ----


@dataclass(frozen=True)
class Cell:
    value: int  # a signed cell, or an unsigned 64-bit token
    is_token: bool = False


def binary32(x: float) -> int:
    if math.isnan(x):
        return 0x7FC00000
    return struct.unpack("<i", struct.pack("<f", x + 0.0))[0]  # -0.0 + 0.0 is 0.0


def words(x: Number) -> int:
    if isinstance(x, int):
        bits = x & MASK64
    else:
        bits = 0x7FF8000000000000 if math.isnan(x) else bits_of(x + 0.0)
    return (bits % 2**32 + WORD_FACTOR * (bits >> 32)) % P


def cell(x: Number, rule: Rule, shift: int = 0) -> Cell:
    """The fine cell (shift 0) or the coarse one (shift rule.coarse_shift)."""
    if rule.kind == "binary32":
        return Cell(binary32(float(x)))
    if rule.kind == "words":
        return Cell(words(x))
    if rule.kind == "integers":
        return Cell(int(x))
    large = isinstance(x, int) and abs(x) > EXACT_INTEGER
    if not large:
        x = float(x)
        if not math.isfinite(x):
            return Cell(token(x), True)
    if rule.kind == "absolute":
        numerator, denominator = x.as_integer_ratio()
        e = rule.fine_exponent + shift
        q = (numerator << -e) // denominator if e < 0 else numerator // (denominator << e)
        if abs(q) < TOKEN_LIMIT:
            return Cell(q)
    elif rule.kind == "relative" and not large:
        total = abs(x) + rule.key_origin
        if total == 0 or SMALLEST_SUM <= total < math.inf:
            key = bits_of(total) - bits_of(rule.key_origin)
            if math.copysign(1.0, x) < 0:
                key = -key
            q = key >> (rule.fine_exponent + shift)
            if abs(q) < TOKEN_LIMIT:
                return Cell(q)
    return Cell(token(x), True)


# ---- 6. digests ----


def coefficient(position: int) -> int:
    return (splitmix64(position) & (2**60 - 1)) | 1


COEFFICIENTS = [coefficient(i) for i in range(BLOCK_BYTES)]
RHO = splitmix64(2**32) % P
WORD_FACTOR = splitmix64(2**33) % P


def block_digest(cells: list[Cell]) -> int:
    return sum(r * c.value for r, c in zip(COEFFICIENTS, cells, strict=False)) % P


def horner(digests: list[int]) -> int:
    h = 0
    for d in digests:
        h = (h * RHO + d) % P
    return h


# ---- 7. residues ----


def residue_lines(values: list[int], bits: int) -> bytes:
    """The residues of one block."""
    if bits == 0:
        return b""
    per_line = 8 * LINE_BYTES // bits
    out = b""
    for start in range(0, len(values), per_line):
        words = [0] * 8
        for j, value in enumerate(values[start : start + per_line]):
            words[j % 8] |= (value % (1 << bits)) << bits * (j // 8)
        out += struct.pack("<8Q", *words)
    return out


# ---- 8. published ----


def _rounded_down(exact: Fraction) -> float:
    """The largest float64 that is not above an exact value."""
    try:
        x = exact.numerator / exact.denominator
    except OverflowError:
        return math.nextafter(math.inf, 0) if exact > 0 else -math.inf
    if math.isinf(x):
        return math.nextafter(math.inf, 0) if exact > 0 else -math.inf
    return x if Fraction(x) <= exact else math.nextafter(x, -math.inf)


def published_inverse(atol: float) -> float:
    grid = _rounded_down(Fraction(atol) * (1 - Fraction(1, 2**11)))
    return _rounded_down(1 / Fraction(grid)) if grid >= 2.0**-1022 else 0.0


def _published_number(x: Number, narrow: bool, integer64: bool, inverse: float) -> tuple[int, bool]:
    """What is hashed for x, and whether it is x's own bits."""
    if integer64:
        own = x & MASK64
        if abs(x) > EXACT_INTEGER:
            return own, True
        x = float(x)
    else:
        x = float(x)
        if math.isnan(x):
            own = 0x7FC00000 if narrow else 0x7FF8000000000000
        elif x == 0:
            own = 0
        else:
            own = struct.unpack("<I", struct.pack("<f", x))[0] if narrow else bits_of(x)
    if inverse == 0 or not math.isfinite(x):
        return own, True
    scaled = _rounded_down(Fraction(x) * Fraction(inverse))
    if not abs(scaled) < (2**31 - 1 if narrow else 2**40):
        return own, True
    number = math.trunc(_rounded_down(Fraction(scaled) + Fraction(-1 if scaled < 0 else 1, 2)))
    return number & (2**32 - 1 if narrow else MASK64), False


def _rotated(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & MASK64


def _final_mix(k: int) -> int:
    k = ((k ^ (k >> 33)) * 0xFF51AFD7ED558CCD) & MASK64
    k = ((k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53) & MASK64
    return k ^ (k >> 33)


def murmur3f(k1: int, k2: int, h1: int, h2: int) -> tuple[int, int]:
    """MurmurHash3_x64_128 of one block of 16 bytes, (h1, h2) being the seed."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 ^= (_rotated((k1 * c1) & MASK64, 31) * c2) & MASK64
    h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & MASK64
    h2 ^= (_rotated((k2 * c2) & MASK64, 33) * c1) & MASK64
    h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & MASK64
    h1, h2 = h1 ^ 16, h2 ^ 16
    h1 = (h1 + h2) & MASK64
    h2 = (h2 + h1) & MASK64
    h1, h2 = _final_mix(h1), _final_mix(h2)
    h1 = (h1 + h2) & MASK64
    h2 = (h2 + h1) & MASK64
    return h1, h2


def published_chunk(numbers: list[Number], dtype: DType, atol: float) -> tuple[int, int]:
    narrow = dtype.scalar_bytes < 4 or dtype.name in ("f32", "c64")
    integer64 = dtype.name in ("i64", "u64")
    inverse = published_inverse(atol)
    group = 4 if narrow else 2
    h1 = h2 = 0
    for i in range(0, len(numbers), group):
        block, marks = 0, 0
        for j, x in enumerate(numbers[i : i + group]):
            number, is_own = _published_number(x, narrow, integer64, inverse)
            block |= number << (128 // group * j)
            marks |= is_own << j
        h1, h2 = murmur3f(block & MASK64, block >> 64, h1, h2)
        h1 ^= marks
    return h1, h2


# ---- chunks ----


@dataclass
class Digests:
    """Of all chunks of one array. linear: leaves are coarse digests. published: pairs (h1, h2), and nothing else."""

    leaves: list
    fine: list[int]
    residues: bytes
    nans: int = 0
    tokens: int = 0


def digest_array(
    numbers: list[Number],
    dtype: DType,
    atol: float,
    rtol: float = 0.0,
    residue_bits: int = 4,
    chunk_bytes: int = SMALLEST_CHUNK,
    published: bool = False,
    rule: Rule | None = None,
) -> Digests:
    """numbers: the scalars of an array in order. rule: without it, that of versions 1 and 2
    (tokens, where it is exact)."""
    block = dtype.block_scalars
    chunk = chunk_bytes // dtype.scalar_bytes
    if published:
        starts = range(0, len(numbers), chunk)
        return Digests([published_chunk(numbers[i : i + chunk], dtype, atol) for i in starts], [], b"")
    rule = rule or rule_for(atol, rtol, residue_bits)
    out = Digests([], [], b"")
    residues = []
    for start in range(0, len(numbers), chunk):
        fine_blocks, coarse_blocks = [], []
        for at in range(start, min(start + chunk, len(numbers)), block):
            part = numbers[at : min(at + block, start + chunk)]
            fine = [cell(x, rule) for x in part]
            fine_blocks.append(block_digest(fine))
            if rule.coarse_shift:
                coarse_blocks.append(block_digest([cell(x, rule, rule.coarse_shift) for x in part]))
            residues.append(residue_lines([c.value for c in fine], rule.residue_bits))
            out.tokens += sum(c.is_token for c in fine)
            out.nans += sum(x != x for x in part)
        out.fine.append(horner(fine_blocks))
        out.leaves.append(horner(coarse_blocks) if rule.coarse_shift else out.fine[-1])
    out.residues = b"".join(residues)
    return out


# ---- 9. tree ----


def tree_levels(leaves: list, blocks_per_chunk: int, published: bool = False) -> list[list]:
    """From the leaves up to the root. Empty without leaves."""
    if not leaves:
        return []
    levels = [list(leaves)]
    blocks = blocks_per_chunk
    while len(levels[-1]) > 1:
        below = levels[-1]
        above = []
        for i in range(0, len(below) - 1, 2):
            left, right = below[i], below[i + 1]
            if published:
                above.append(murmur3f(*right, *murmur3f(*left, 0, 0)))
            else:
                above.append((left * pow(RHO, blocks, P) + right) % P)
        if len(below) % 2:
            above.append(below[-1])
        levels.append(above)
        blocks *= 2
    return levels


def tree_nodes(leaves: list, blocks_per_chunk: int, published: bool = False) -> list:
    """The flattened array: root first, leaves last."""
    return [node for level in reversed(tree_levels(leaves, blocks_per_chunk, published)) for node in level]


# ---- 13. the digest of an array ----

ARRAY_CHUNK = 65536


def array_words(raw: bytes, scalar_bytes: int) -> tuple[list[Number], DType]:
    """The words of an array's bytes, which are little-endian and in row-major order, and their type."""
    dtype = BY_NAME[f"i{8 * min(scalar_bytes, 4)}"]
    return scalars(raw, dtype), dtype


def array_root(numbers: list[Number], dtype: DType, atol: float = 1.0, rtol: float = 0.0) -> int:
    """The root of section 13. numbers: words, or with other tolerances the scalars."""
    made = digest_array(numbers, dtype, atol, rtol, residue_bits=0, chunk_bytes=ARRAY_CHUNK)
    levels = tree_levels(made.leaves, ARRAY_CHUNK // BLOCK_BYTES)
    return levels[-1][0] if levels else 0


def array_digest(kind: str, shape: tuple[int, ...], root: int, how: str = "bits") -> int:
    """kind: the name of the type; how: 'bits', or both tolerances."""
    text = f"twinrun digest 1\n{kind}\n{','.join(map(str, shape))}\n{how}\n".encode()
    return int.from_bytes(hashlib.blake2b(text + root.to_bytes(8, "little"), digest_size=16).digest(), "big")


def node_count(leaves: int) -> int:
    count = width = leaves
    while width > 1:
        width = (width + 1) // 2
        count += width
    return count


# ---- 10. the proof ----


def check_chunk(
    dtype: DType,
    count: int,
    bits: int,
    widest: int,
    fine_a: int,
    fine_b: int,
    residues_a: bytes,
    residues_b: bytes,
) -> bool:
    """True only if no element of the chunk differs by more than the tolerance."""
    block = dtype.block_scalars
    per_line = 8 * LINE_BYTES // bits
    half = 1 << (bits - 1)
    corrections = []
    at = 0
    for start in range(0, count, block):
        n = min(block, count - start)
        correction = 0
        for i in range(n):
            j = i % per_line
            word = at + i // per_line * LINE_BYTES + j % 8 * 8

            def residue(residues: bytes, word: int = word, j: int = j) -> int:
                return (int.from_bytes(residues[word : word + 8], "little") >> bits * (j // 8)) % (2 * half)

            c = (residue(residues_a) - residue(residues_b)) % (2 * half)
            c = c - 2 * half if c >= half else c
            if abs(c) > widest:
                return False
            correction += COEFFICIENTS[i] * c
        corrections.append(correction)
        at += -(-n // per_line) * LINE_BYTES
    return (fine_a - fine_b - horner(corrections)) % P == 0


# ---- 11. sums ----

INDEX_LIMIT = 2**62


@cache
def power_of_rho(blocks: int) -> int:
    return pow(RHO, blocks, P)


@dataclass(frozen=True)
class Buckets:
    """How scalars of one type are summed up: height is that of the buckets above the chunks."""

    block_scalars: int
    blocks_per_chunk: int
    height: int = 0

    @property
    def blocks(self) -> int:
        return self.blocks_per_chunk << self.height

    @property
    def scalars(self) -> int:
        return self.blocks * self.block_scalars

    def weight(self, index: int) -> tuple[int, int]:
        """The bucket of a scalar, and the factor of its value there."""
        bucket, within = divmod(index, self.scalars)
        behind = self.blocks - 1 - within // self.block_scalars
        return bucket, COEFFICIENTS[within % self.block_scalars] * power_of_rho(behind) % P


def place_indices(
    shape: tuple[int, ...], global_shape: tuple[int, ...], offset: tuple[int, ...], pair: int = 1
) -> list[int] | None:
    """Indices of a part's scalars in the whole array, in order. None: it is too large."""
    if math.prod(global_shape) * pair > INDEX_LIMIT:
        return None
    items = [0]
    for n, g, o in zip(shape, global_shape, offset, strict=True):
        items = [at * g + o + i for at in items for i in range(n)]
    return [at * pair + k for at in items for k in range(pair)]


def id_stride(row_scalars: int) -> int:
    stride = 1
    while stride < row_scalars:
        stride *= 2
    return stride


def id_indices(ids: list[int], row_scalars: int) -> list[int] | None:
    """The same for rows with IDs. None: an ID is negative or too large."""
    stride = id_stride(row_scalars)
    if any(not 0 <= i < INDEX_LIMIT // stride for i in ids):
        return None
    return [i * stride + k for i in ids for k in range(row_scalars)]


Sums = dict[int, tuple[int, int]]  # by bucket: coarse, fine


def sum_up(indices: list[int], numbers: list[Number], rule: Rule, buckets: Buckets) -> Sums:
    sums: Sums = {}
    for index, x in zip(indices, numbers, strict=True):
        bucket, weight = buckets.weight(index)
        coarse, fine = sums.get(bucket, (0, 0))
        of_fine = weight * cell(x, rule).value
        of_coarse = weight * cell(x, rule, rule.coarse_shift).value if rule.coarse_shift else of_fine
        sums[bucket] = (coarse + of_coarse) % P, (fine + of_fine) % P
    return sums


def add_sums(parts: list[tuple[Sums, int]], height: int, blocks_per_chunk: int) -> Sums:
    """parts: sums and their height, at most `height`."""
    added: Sums = {}
    for sums, own in parts:
        joined = 1 << (height - own)
        for bucket, of_part in sums.items():
            behind = joined - 1 - bucket % joined
            factor = pow(RHO, (blocks_per_chunk << own) * behind, P)
            known = added.get(bucket // joined, (0, 0))
            coarse, fine = ((k + s * factor) % P for k, s in zip(known, of_part, strict=True))
            added[bucket // joined] = coarse, fine
    return added


def sums_of_whole(made: Digests, scalar_count: int, buckets: Buckets) -> Sums:
    """Of an array that one rank holds, from the digests of its chunks."""
    sums: Sums = {}
    chunk = buckets.block_scalars * buckets.blocks_per_chunk
    for number, digests in enumerate(zip(made.leaves, made.fine, strict=True)):
        here = min(chunk, scalar_count - number * chunk)
        missing = buckets.blocks_per_chunk - -(-here // buckets.block_scalars)
        coarse, fine = (d * pow(RHO, missing, P) % P for d in digests)
        sums[number] = coarse, fine
    return sums


def check_bucket(
    a: int,
    b: int,
    residues_a: dict[int, int],
    residues_b: dict[int, int],
    bits: int,
    widest: int,
    buckets: Buckets,
) -> bool:
    """True only if no element of a bucket differs by more than the tolerance. a, b: fine sums. residues: by index."""
    if residues_a.keys() != residues_b.keys():
        return False
    explained = 0
    for index, residue in residues_a.items():
        c = (residue - residues_b[index]) % (1 << bits)
        c = c - (1 << bits) if c >= 1 << (bits - 1) else c
        if abs(c) > widest:
            return False
        explained += buckets.weight(index)[1] * c
    return (a - b - explained) % P == 0
