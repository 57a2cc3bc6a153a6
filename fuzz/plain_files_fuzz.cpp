// Headers of .npy and .safetensors files from any bytes: an answer whose arrays lie in the file as
// it says, or none.
//
// The first byte chooses the format and how many bytes the file has beyond those that are given.
#include <algorithm>
#include <set>

#include "element/dtype.hpp"
#include "input.hpp"
#include "source/plain_files.hpp"

using namespace twinrun;

namespace {

void check_array(const PlainArray& array, std::uint64_t file_bytes) {
    std::uint64_t items = 1;
    // modulo 2^64, as a wrong answer would be
    for (const std::uint64_t size : array.shape)
        items *= size;
    fuzz::require(items == array.items);
    const std::uint64_t bytes = array.items * item_bytes(array.dtype);
    fuzz::require(bytes / item_bytes(array.dtype) == array.items);
    fuzz::require(array.offset <= file_bytes && bytes <= file_bytes - array.offset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const auto choice = input.take<std::uint8_t>();
    const std::vector<std::byte> start = input.take_bytes(input.left());
    const std::uint64_t more = choice >> 1;
    if ((choice & 1) == 0) {
        const std::uint64_t file_bytes = start.size() + more;
        const auto file = plain_npy(start, file_bytes);
        if (!file) return 0;
        fuzz::require(file->arrays.size() == 1 && !file->has_texts && file->texts.empty());
        const PlainArray& array = file->arrays[0];
        check_array(array, file_bytes);
        fuzz::require(array.offset + array.items * item_bytes(array.dtype) == file_bytes);
        return 0;
    }
    const std::uint64_t file_bytes = 8 + start.size() + more;
    const auto file = plain_safetensors(start, file_bytes);
    if (!file) return 0;
    std::set<std::string> names;
    std::uint64_t bytes = 0;
    for (const PlainArray& array : file->arrays) {
        check_array(array, file_bytes);
        fuzz::require(array.offset >= 8 + start.size() && names.insert(array.name).second);
        bytes += array.items * item_bytes(array.dtype);
    }
    fuzz::require(bytes == more);
    fuzz::require(file->has_texts || file->texts.empty());
    return 0;
}
