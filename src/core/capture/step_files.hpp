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

// Owned by a PendingStep. Writes name their offset; writes of disjoint parts are thread-safe, the
// other functions are called by one thread after all writes. Destroyed before finish(), it removes
// the files that it wrote.
class StepFiles {
   public:
    // Makes the step's folder and the temporary files in it. writer: of the history that the step
    // becomes part of; its journal is not changed. shared_file: for a shared layout, the name of
    // the file that the data of several ranks goes to.
    static Result<std::unique_ptr<StepFiles>> create(const HistoryWriter& writer, std::int64_t step,
                                                     std::string folder,
                                                     std::shared_ptr<const StepLayout> layout,
                                                     const std::string& shared_file);
    ~StepFiles();

    // offset: in the data file, or, for a layout that is recorded or shared, in the image of it
    // that is kept in memory.
    Result<> write_data(std::uint64_t offset, std::span<const std::byte> bytes);
    // offset: in the residues of this field.
    Result<> write_residues(std::size_t field, std::uint64_t offset, std::span<const std::byte> bytes);
    // In place of writing a field's residues: MetadataWriter::write_residue_checksums().
    Result<> write_residue_checksums(std::size_t field, std::uint64_t offset,
                                     std::span<const std::uint64_t> checksums) {
        return metadata_->write_residue_checksums(field, offset, checksums);
    }
    // Writes the rest of the metadata, and syncs the files under their final names, and the folder.
    // Returns what the journal will say of them.
    Result<RankStep> finish(std::vector<FieldDigests>& digests);
    // After finish() with a recorded layout: the image, and residues that are not in the metadata
    // file. The caller records both, in the order of steps.
    AlignedBytes take_image() { return std::move(image_); }
    MetadataRest take_residues() { return metadata_->take_residues(); }

    // With a shared layout, these replace finish(): write_digests() first; then the caller writes
    // image() into the shared file; then finish_shared() with the place of this rank's bytes in it.
    Result<> write_digests(std::vector<FieldDigests>& digests);
    // Path of the step's folder.
    [[nodiscard]] const std::string& folder() const { return folder_; }
    [[nodiscard]] std::span<const std::byte> image() const { return {bytes_, layout_->file_bytes}; }
    Result<RankStep> finish_shared(const SharedPlace& place);

   private:
    explicit StepFiles(FileSystem& system) : system_(system) {}
    Result<RankStep> finish_metadata();
    FileSystem& system_;
    std::string folder_;
    RankStep step_;
    std::shared_ptr<const StepLayout> layout_;
    std::unique_ptr<OutputFile> data_;  // null: data is not kept, or goes to image_
    std::string temporary_;             // path of data_ until it is renamed
    AlignedBytes image_;                // content of the data file, if it is recorded or shared
    std::byte* bytes_ = nullptr;        // address of image_, or null
    std::unique_ptr<MetadataWriter> metadata_;
};

}  // namespace twinrun
