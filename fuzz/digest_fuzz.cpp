// Every backend gives the portable one's digests, residues, counts and sketches, for any bytes as
// any type under any rule.
#include <algorithm>
#include <bit>
#include <cmath>

#include "digest/digest.hpp"
#include "input.hpp"

using namespace twinrun;
using fuzz::Input;
using fuzz::require;

namespace {

double tolerance(Input& input) {
    const auto bits = input.take<std::uint64_t>();
    if (bits == 0) return 0;
    // Any number, or one of a size that data has.
    const double x = std::fabs(std::bit_cast<double>(bits));
    return std::isfinite(x) ? x
                            : std::ldexp(1 + static_cast<double>(bits & 0xFFFF) / 65536,
                                         static_cast<int>(bits >> 16 & 63) - 40);
}

struct Made {
    std::vector<ChunkDigest> digests;
    std::vector<std::byte> residues;
    ElementCounts counts;
};

Made make(const DigestSettings& settings, const ElementView& view, std::uint64_t scalars, Backend backend) {
    Digester digester(settings, view.scalar, backend);
    Made made;
    const std::size_t chunk = digester.shape().chunk_scalars;
    made.digests.resize((scalars + chunk - 1) / chunk);
    made.residues.assign(chunk_residue_bytes(view.scalar, scalars, settings.rule.residue_bits),
                         std::byte{0xA5});
    digester.chunks(view, 0, scalars, made.digests.data(), made.residues.data(), &made.counts);
    return made;
}

void check_kernels(Input& input, Backend backend) {
    const unsigned bits = (input.take<std::uint8_t>() & 1) != 0 ? 2 : 4;
    const std::size_t n = std::min<std::size_t>(kBlockBytes, input.left() * 8 / bits / 2);
    const auto a = input.take_bytes(residue_bytes(n, bits));
    const auto b = input.take_bytes(residue_bytes(n, bits));
    SketchBlock portable, other;
    digest_kernels(Backend::portable).sketch(a.data(), b.data(), n, bits, &portable);
    digest_kernels(backend).sketch(a.data(), b.data(), n, bits, &other);
    require(portable.correction == other.correction && portable.beyond == other.beyond &&
            portable.counts == other.counts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const auto choice = input.take<std::uint8_t>();
    const auto dtype = dtype_from_number(static_cast<std::uint8_t>(1 + choice % 15));
    const auto form = input.take<std::uint8_t>();
    DigestSettings settings;
    settings.tolerance.atol = tolerance(input);
    settings.kind = (form & 0x40) != 0 ? DigestKind::published : DigestKind::linear;
    settings.tolerance.rtol = settings.kind == DigestKind::linear ? tolerance(input) : 0;
    const unsigned bits = (form & 3) % 3 * 2;
    // The last value of three in two bits: exact numbers by their bits, where there are such.
    const auto rule = (form & 3) == 3 ? cell_rule(settings.tolerance, bits, scalar_type(*dtype))
                                      : cell_rule(settings.tolerance, bits);
    require(rule.ok());
    if (settings.kind == DigestKind::linear) settings.rule = *rule.operator->();
    settings.chunk_bytes = (form & 4) != 0 ? 8192 : 4096;

    const std::size_t item = item_bytes(*dtype);
    const std::size_t gap = (form & 8) != 0 ? 1 + form % 7 : 0;
    const std::size_t before = form >> 4 & 3;
    // A pattern repeated, so that short inputs fill blocks too.
    const std::size_t repeats = 1 + input.take<std::uint16_t>() % 600;
    const auto pattern = input.take_bytes(std::min<std::size_t>(input.left(), 40000));
    const std::size_t bytes = std::min<std::size_t>(pattern.size() * repeats, 40000);
    const std::size_t items = bytes / (item + gap);
    std::vector<std::byte> memory(before + items * (item + gap));
    for (std::size_t i = before; i < memory.size(); ++i)
        memory[i] = pattern[(i - before) % pattern.size()];
    ElementView view = dense_view(*dtype, memory.data() + before);
    view.stride += gap;
    view.swap = (form & 0x80) != 0;
    const std::uint64_t scalars = items * view.pair;

    const Made portable = make(settings, view, scalars, Backend::portable);
    for (const Backend backend : {Backend::avx2, Backend::avx512}) {
        if (!backend_available(backend)) continue;
        const Made other = make(settings, view, scalars, backend);
        require(other.digests == portable.digests);
        require(other.residues == portable.residues);
        require(other.counts.nans == portable.counts.nans && other.counts.tokens == portable.counts.tokens);
        Input again(data, size);
        check_kernels(again, backend);
    }
    return 0;
}
