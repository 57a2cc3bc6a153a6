#include "platform/anchored.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "platform/file_io_internal.hpp"

namespace twinrun {

namespace {

using AsNamed = std::function<Error(Error)>;

template <class T>
Result<T> named(Result<T> result, const AsNamed& as_named) {
    if (result) return result;
    return as_named(std::move(result).error());
}

// A file's errors name the path by which it was opened.
class NamedFile final : public OutputFile {
   public:
    NamedFile(std::unique_ptr<OutputFile> file, AsNamed as_named)
        : file_(std::move(file)), as_named_(std::move(as_named)) {}
    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        return named(file_->write_at(offset, bytes), as_named_);
    }
    Result<> sync() override { return named(file_->sync(), as_named_); }
    void set_time(std::int64_t mtime_ns) override { file_->set_time(mtime_ns); }
    Result<> close() override { return named(file_->close(), as_named_); }

   private:
    std::unique_ptr<OutputFile> file_;
    AsNamed as_named_;
};

// So do those of new files in a folder.
class NamedNewFile final : public NewFile {
   public:
    NamedNewFile(std::unique_ptr<NewFile> file, AsNamed as_named)
        : file_(std::move(file)), as_named_(std::move(as_named)) {}
    Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
        return named(file_->write_at(offset, bytes), as_named_);
    }
    void set_time(std::int64_t mtime_ns) override { file_->set_time(mtime_ns); }
    Result<> publish() override { return named(file_->publish(), as_named_); }

   private:
    std::unique_ptr<NewFile> file_;
    AsNamed as_named_;
};

class NamedNewFiles final : public NewFiles {
   public:
    NamedNewFiles(std::unique_ptr<NewFiles> files, AsNamed as_named)
        : files_(std::move(files)), as_named_(std::move(as_named)) {}
    Result<> check_free(const std::string& name, bool as_folder) override {
        return named(files_->check_free(name, as_folder), as_named_);
    }
    Result<std::unique_ptr<NewFile>> create(const std::string& name, std::uint64_t bytes) override {
        TWR_TRY(auto file, named(files_->create(name, bytes), as_named_));
        return std::unique_ptr<NewFile>(std::make_unique<NamedNewFile>(std::move(file), as_named_));
    }
    Result<> make_folder(const std::string& name) override {
        return named(files_->make_folder(name), as_named_);
    }
    Result<> make_link(const std::string& name, const std::string& to) override {
        return named(files_->make_link(name, to), as_named_);
    }
    Result<> sync() override { return named(files_->sync(), as_named_); }

   private:
    std::unique_ptr<NewFiles> files_;
    AsNamed as_named_;
};

}  // namespace

AnchoredFileSystem::AnchoredFileSystem(FileSystem& base, std::string root)
    : base_(base), root_(std::move(root)) {}

AnchoredFileSystem::~AnchoredFileSystem() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

Result<> AnchoredFileSystem::anchor() {
    if (descriptor_ >= 0) return success();
    do {
        descriptor_ = ::open(root_.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) return file_io::system_error(root_, "open the folder", errno);
    const std::string name = "/proc/self/fd/" + std::to_string(descriptor_);
    if (is_held(name)) held_ = name;
    return success();
}

bool AnchoredFileSystem::is_held(const std::string& path) const {
    struct stat there, ours;
    return ::stat(path.c_str(), &there) == 0 && ::fstat(descriptor_, &ours) == 0 &&
           there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

std::string AnchoredFileSystem::held(const std::string& path) const {
    if (held_.empty() || !path.starts_with(root_)) return path;
    if (path.size() == root_.size()) return held_;
    return path[root_.size()] == '/' ? held_ + path.substr(root_.size()) : path;
}

Error AnchoredFileSystem::as_named(Error error) const {
    if (held_.empty()) return error;
    for (std::size_t at = error.message.find(held_); at != std::string::npos;
         at = error.message.find(held_, at + root_.size()))
        error.message.replace(at, held_.size(), root_);
    return error;
}

Result<std::unique_ptr<OutputFile>> AnchoredFileSystem::create(const std::string& path,
                                                               std::uint64_t expected_bytes) {
    auto file = as_named(base_.create(held(path), expected_bytes));
    if (!file || held_.empty()) return file;
    return std::unique_ptr<OutputFile>(std::make_unique<NamedFile>(
        std::move(file).value(), [this](Error error) { return as_named(std::move(error)); }));
}
Result<std::unique_ptr<OutputFile>> AnchoredFileSystem::open_append(const std::string& path,
                                                                    std::uint64_t& size) {
    auto file = as_named(base_.open_append(held(path), size));
    if (!file || held_.empty()) return file;
    return std::unique_ptr<OutputFile>(std::make_unique<NamedFile>(
        std::move(file).value(), [this](Error error) { return as_named(std::move(error)); }));
}
Result<> AnchoredFileSystem::rename(const std::string& from, const std::string& to) {
    return as_named(base_.rename(held(from), held(to)));
}
Result<> AnchoredFileSystem::replace(const std::string& from, const std::string& to) {
    return as_named(base_.replace(held(from), held(to)));
}
Result<> AnchoredFileSystem::sync_folder(const std::string& path) {
    return as_named(base_.sync_folder(held(path)));
}
Result<> AnchoredFileSystem::make_folders(const std::string& path) {
    return as_named(base_.make_folders(held(path)));
}
Result<bool> AnchoredFileSystem::make_marked_folder(const std::string& path, const std::string& marker) {
    return as_named(base_.make_marked_folder(held(path), marker));
}
Result<> AnchoredFileSystem::remove(const std::string& path) { return as_named(base_.remove(held(path))); }
Result<> AnchoredFileSystem::remove_empty_folder(const std::string& path) {
    // The folder itself has no other name than its path.
    if (!held_.empty() && path == root_) return is_held(path) ? base_.remove_empty_folder(path) : success();
    return as_named(base_.remove_empty_folder(held(path)));
}
Result<> AnchoredFileSystem::truncate(const std::string& path, std::uint64_t size) {
    return as_named(base_.truncate(held(path), size));
}
Result<std::unique_ptr<NewFiles>> AnchoredFileSystem::open_new(const std::string& folder) {
    auto files = as_named(base_.open_new(held(folder)));
    if (!files || held_.empty()) return files;
    return std::unique_ptr<NewFiles>(std::make_unique<NamedNewFiles>(
        std::move(files).value(), [this](Error error) { return as_named(std::move(error)); }));
}

}  // namespace twinrun
