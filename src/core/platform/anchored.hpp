// Changes to one folder, by its descriptor: another folder that gets its name meanwhile is not
// touched.
#pragma once

#include <memory>
#include <string>

#include "platform/file_io.hpp"

namespace twinrun {

// Hands every change to another file system. From anchor() on, paths below `root` mean what is in
// the folder that had this name then, wherever it has been moved; errors name the paths that were
// given. What only reads goes by names as before: a caller that looks at another folder by then
// finds nothing of its own there. Thread-safe after anchor().
class AnchoredFileSystem final : public FileSystem {
   public:
    // root: absolute, as real_path() gives it.
    AnchoredFileSystem(FileSystem& base, std::string root);
    ~AnchoredFileSystem() override;
    AnchoredFileSystem(const AnchoredFileSystem&) = delete;
    AnchoredFileSystem& operator=(const AnchoredFileSystem&) = delete;

    // The folder is there, and no link. Without /proc, by which a descriptor has a name, paths stay
    // what they are.
    Result<> anchor();

    Result<std::unique_ptr<OutputFile>> create(const std::string& path,
                                               std::uint64_t expected_bytes) override;
    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override;
    Result<> rename(const std::string& from, const std::string& to) override;
    Result<> replace(const std::string& from, const std::string& to) override;
    Result<> sync_folder(const std::string& path) override;
    Result<> make_folders(const std::string& path) override;
    Result<bool> make_marked_folder(const std::string& path, const std::string& marker) override;
    Result<> remove(const std::string& path) override;
    Result<> remove_empty_folder(const std::string& path) override;
    Result<> truncate(const std::string& path, std::uint64_t size) override;
    Result<std::unique_ptr<NewFiles>> open_new(const std::string& folder) override;

   private:
    [[nodiscard]] bool is_held(const std::string& path) const;
    [[nodiscard]] std::string held(const std::string& path) const;
    [[nodiscard]] Error as_named(Error error) const;
    template <class T>
    Result<T> as_named(Result<T> result) const {
        if (result) return result;
        return as_named(std::move(result).error());
    }

    FileSystem& base_;
    std::string root_;
    std::string held_;  // the folder's descriptor as a path; empty: not anchored
    int descriptor_ = -1;
};

}  // namespace twinrun
