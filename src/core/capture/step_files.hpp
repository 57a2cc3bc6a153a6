// One rank's files of one step on one tier, until they are ready to be committed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/aligned.hpp"
#include "capture/layout.hpp"
#include "history/history.hpp"
#include "history/writer.hpp"
#include "platform/comm.hpp"

namespace twinrun {

// Writes are positional and thread-safe for disjoint parts. Abandoned before finish(): what was written is removed.
class StepFiles {
   public:
    // writer: whose history the step becomes part of; its path and rank alone are used. layout outlives this.
    // shared_file: name of the file that the data goes to together with that of other ranks; of a shared layout only.
    static Result<std::unique_ptr<StepFiles>> create(const HistoryWriter& writer, std::int64_t step,
                                                     std::string folder,
                                                     std::shared_ptr<const StepLayout> layout,
                                                     const std::string& shared_file);
    ~StepFiles();

    Result<> write_data(std::uint64_t offset, std::span<const std::byte> bytes);
    Result<> write_residues(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes);
    // Where data is kept as differences, it is gathered here, and recorded by the caller: after finish(), in the order of steps.
    AlignedBytes take_image() { return std::move(image_); }
    // Everything was written. The rest of the metadata; then all is synced under its final names, and so is the folder.
    Result<RankStep> finish(std::vector<FieldDigests>& digests);

    // Of a shared layout, in place of finish(): first what is in the metadata whatever becomes of the data, and then, once that is
    // in the shared file, the rest.
    Result<> write_digests(std::vector<FieldDigests>& digests);
    [[nodiscard]] const std::string& folder() const { return folder_; }  // its path
    [[nodiscard]] std::span<const std::byte> image() const { return {bytes_, layout_->file_bytes}; }
    Result<RankStep> finish_shared(const SharedPlace& place);

   private:
    explicit StepFiles(FileSystem& system) : system_(system) {}
    Result<RankStep> finish_metadata();
    FileSystem& system_;
    std::string folder_;  // its path
    RankStep step_;
    std::shared_ptr<const StepLayout> layout_;
    std::unique_ptr<OutputFile> data_;  // under a temporary name
    std::string temporary_;
    AlignedBytes image_;          // of what is recorded, or shared
    std::byte* bytes_ = nullptr;  // of it
    std::unique_ptr<MetadataWriter> metadata_;
};

}  // namespace twinrun
