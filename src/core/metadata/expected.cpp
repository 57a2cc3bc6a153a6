#include "metadata/expected.hpp"

#include "base/parallel.hpp"

namespace twinrun {

namespace {

constexpr std::size_t kFilesOfAThread = 32;  // fewer are opened while a thread starts

std::shared_ptr<MetadataFile> open_one(const ExpectedMetadata& expected, const HeldFolder& folder) {
    auto file = MetadataFile::open(expected.path, &folder);
    if (!file) return nullptr;
    if ((*file)->file().size() != expected.bytes || (*file)->header_checksum() != expected.header_checksum)
        return nullptr;
    if (expected.has_data && !(*file)->check_data_files(&folder)) return nullptr;
    return std::move(file).value();
}

}  // namespace

std::vector<std::shared_ptr<MetadataFile>> open_expected(const std::string& folder,
                                                         std::span<const ExpectedMetadata> files,
                                                         int threads) {
    const HeldFolder held(folder);
    std::vector<std::shared_ptr<MetadataFile>> opened(files.size());
    in_parallel(files.size(), threads, kFilesOfAThread, [&](std::size_t at, std::size_t /*thread*/) {
        try {
            opened[at] = open_one(files[at], held);
        } catch (const std::exception&) {  // no memory: others say so
            opened[at] = nullptr;
        }
    });
    return opened;
}

}  // namespace twinrun
