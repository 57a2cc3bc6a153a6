// Golden files: compact metadata, and the constants of digests.
#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "digest/coefficients.hpp"
#include "digest/field61.hpp"
#include "metadata/compact.hpp"
#include "owned_array.hpp"
#include "shared.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

nb::object digest_weights(std::size_t scalars, std::size_t block_scalars) {
    if (block_scalars == 0 || block_scalars > kLargestBlock || scalars > kLargestChunk)
        raise({ErrorCode::invalid_argument, "blocks or chunks of more scalars than there are"});
    std::vector<std::uint64_t> weights(scalars);
    const std::size_t blocks = divide_up(scalars, block_scalars);
    for (std::size_t i = 0; i < scalars; ++i) {
        const std::uint64_t factor = power61(kRho, blocks - 1 - i / block_scalars);
        weights[i] = multiply61(coefficient(i % block_scalars), factor);
    }
    return owned_array(std::move(weights));
}

}  // namespace

void define_golden(nb::module_& m) {
    m.def(
        "compact_metadata",
        [](const PyMetadata& metadata) {
            const auto run = [&] {
                const nb::gil_scoped_release unlocked;
                return compact_metadata(*metadata.file);
            };
            const std::vector<std::byte> bytes = take(run());
            return nb::bytes(bytes.data(), bytes.size());
        },
        "metadata"_a,
        "The metadata file as small as the format allows, without data files and checksums of data.");
    // Of digests (spec/digest.md), for what is known of values that are at hand.
    m.attr("PRIME") = kPrime;
    m.attr("TOKEN_LIMIT") = kTokenLimit;
    m.attr("SMALLEST_SUM") = kSmallestSum;
    m.def("digest_weights", &digest_weights, "scalars"_a, "block_scalars"_a,
          "By what a chunk's digest multiplies each of its scalars' values, modulo PRIME.");
}

}  // namespace twinrun
