// Layouts of Lustre's files from any bytes: an answer that can be one, or none; not a byte beyond
// the end is looked at.
#include "aggregate/plan/lustre.hpp"
#include "input.hpp"

using namespace twinrun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto found = stripe_bytes_in({reinterpret_cast<const std::byte*>(data), size});
    if (found) {
        fuzz::require(*found > 0 && *found % 65536 == 0 && size >= 32);
        const std::uint64_t block = block_of_stripes(*found, std::uint64_t{64} << 20);
        fuzz::require(block > 0 && block <= *found && *found % block == 0);
    }
    return 0;
}
