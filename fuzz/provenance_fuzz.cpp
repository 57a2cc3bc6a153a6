// Provenance from any bytes: what is accepted is written again as JSON that reads back the same, as
// long as it is within the limits of what is written.
#include "history/provenance.hpp"
#include "input.hpp"

using namespace twinrun;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto first = provenance_from_json({reinterpret_cast<const char*>(data), size});
    if (!first.ok()) {
        fuzz::require(first.error().code == ErrorCode::damaged);
        return 0;
    }
    const auto second = provenance_from_json(provenance_to_json(*first));
    fuzz::require(second.ok());
    if (size < 4096) fuzz::require(second->groups == first->groups);
    const auto third = provenance_from_json(provenance_to_json(*second));
    fuzz::require(third.ok() && third->groups == second->groups);
    return 0;
}
