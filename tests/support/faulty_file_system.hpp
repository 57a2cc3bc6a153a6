// A FileSystem for tests, around a real one: fails the n-th operation, cuts writes short, and forgets what was not
// synced when the power is cut.
//
// It keeps a model of what is on the disk for sure (durable) beside what programs see (current):
//   bytes of a file    durable after its sync()
//   names in a folder  durable after sync_folder of that folder; what make_folders makes is durable at once
// power_cut() makes the real folders look as after the next boot. Seed 0 loses all that was not synced; any other seed
// keeps some of it: of a folder's changes a first part (file systems keep their order), of a file's changes any, whole
// or up to a sector. Code that is right survives every seed.
//
// Files that others write meanwhile, past this object, are not in the model.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/file_io.hpp"

namespace twinrun::testing {

struct Fault {
    std::size_t at = 0;  // the operation that fails, counted from 1; 0: none
    Error error{ErrorCode::io, "injected fault"};
    std::size_t written_first = 0;  // if it is a write: that many bytes get through
    bool dead_after = false;        // all later operations fail too, as when the machine goes down
};

// A process that is killed at the operation `at` (0: at none). Of a write, a first part got through.
inline Fault killed_at(std::size_t at) {
    Fault fault;
    fault.at = at;
    fault.written_first = 100;
    fault.dead_after = true;
    return fault;
}

class FaultyFileSystem final : public FileSystem {
   public:
    explicit FaultyFileSystem(FileSystem& inner = posix_file_system()) : inner_(inner) {}

    // Operations begun so far, those of files included: to learn how many faults there are to try.
    std::size_t operations() const {
        const std::lock_guard guard(mutex_);
        return log_.size();
    }
    // "write_at /tmp/x", in order.
    std::vector<std::string> log() const {
        const std::lock_guard guard(mutex_);
        return log_;
    }

    // Counts from here: the next operation is number 1.
    void inject(Fault fault) {
        const std::lock_guard guard(mutex_);
        fault_ = std::move(fault);
        log_.clear();
        dead_ = false;
    }

    // Files that are open now are dead; everything else works again.
    void power_cut(std::uint64_t seed = 0) {
        const std::lock_guard guard(mutex_);
        std::mt19937_64 random(seed);
        restore(*root_, "/", seed == 0 ? nullptr : &random);
        ++boots_;
        dead_ = false;
        fault_ = {};
    }

    Result<std::unique_ptr<OutputFile>> create(const std::string& path,
                                               std::uint64_t expected_bytes) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("create", path));
        const Place place = find(path);
        TWR_TRY(auto file, inner_.create(path, expected_bytes));
        auto node = std::make_shared<Node>();
        place.folder->change({{place.name, node}});
        return wrap(std::move(file), path, std::move(node), true);
    }

    Result<std::unique_ptr<OutputFile>> open_append(const std::string& path, std::uint64_t& size) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("open_append", path));
        const Place place = find(path);
        TWR_TRY(auto file, inner_.open_append(path, size));
        auto node = place.node();
        if (node == nullptr) {
            node = std::make_shared<Node>();
            place.folder->change({{place.name, node}});
        }
        return wrap(std::move(file), path, std::move(node), false);
    }

    Result<> rename(const std::string& from, const std::string& to) override {
        const std::lock_guard guard(mutex_);
        return move("rename", from, to, [&] { return inner_.rename(from, to); });
    }

    Result<> replace(const std::string& from, const std::string& to) override {
        const std::lock_guard guard(mutex_);
        return move("replace", from, to, [&] { return inner_.replace(from, to); });
    }

    Result<> sync_folder(const std::string& path) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("sync_folder", path));
        const Place place = find(path);
        TWR_CHECK(inner_.sync_folder(path));
        if (const auto node = place.node()) node->sync();
        return success();
    }

    Result<> make_folders(const std::string& path) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("make_folders", path));
        find(path);  // before it is there: what is made is not mistaken for old
        TWR_CHECK(inner_.make_folders(path));
        Node* folder = root_.get();
        for (const auto& name : parts(path)) {
            auto& child = folder->names[name];
            if (child == nullptr) {
                child = std::make_shared<Node>();
                child->is_folder = true;
                folder->known.insert(name);
                folder->sync();
            }
            folder = child.get();
        }
        return success();
    }

    Result<> remove(const std::string& path) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("remove", path));
        const Place place = find(path);
        TWR_CHECK(inner_.remove(path));
        if (place.node() != nullptr) place.folder->change({{place.name, nullptr}});
        return success();
    }

    Result<bool> make_marked_folder(const std::string& path, const std::string& marker) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("make_marked_folder", path));
        const Place place = find(path);
        TWR_TRY(const bool made, inner_.make_marked_folder(path, marker));
        if (place.folder == nullptr) return made;
        if (!made) {  // by another hand, perhaps, since this one last looked
            if (place.node() == nullptr) place.folder->known.erase(place.name);
            load(*place.folder, place.name, path);
            return false;
        }
        auto folder = std::make_shared<Node>();
        folder->is_folder = true;
        folder->known.insert(marker);
        folder->names[marker] = std::make_shared<Node>();
        folder->sync();
        place.folder->change({{place.name, folder}});
        place.folder->sync();
        return true;
    }

    Result<> remove_empty_folder(const std::string& path) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("remove_empty_folder", path));
        const Place place = find(path);
        TWR_CHECK(inner_.remove_empty_folder(path));
        std::error_code failure;
        if (place.node() != nullptr && !std::filesystem::exists(path, failure)) {
            empty(*place.node());
            place.folder->change({{place.name, nullptr}});
        }
        return success();
    }

    Result<> truncate(const std::string& path, std::uint64_t size) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("truncate", path));
        const Place place = find(path);
        TWR_CHECK(inner_.truncate(path, size));
        if (const auto node = place.node()) node->change({size, {}, true});
        return success();
    }

    // These operations fail like all others; what they make is not in the model of the disk.
    Result<std::unique_ptr<NewFiles>> open_new(const std::string& path) override {
        const std::lock_guard guard(mutex_);
        TWR_CHECK(begin("open_new", path));
        TWR_TRY(auto inner, inner_.open_new(path));
        return std::unique_ptr<NewFiles>(std::make_unique<New>(*this, std::move(inner)));
    }

   private:
    using Bytes = std::vector<std::byte>;

    class New final : public NewFiles {
       public:
        New(FaultyFileSystem& owner, std::unique_ptr<NewFiles> inner)
            : owner_(owner), inner_(std::move(inner)) {}
        Result<> check_free(const std::string& name, bool as_folder) override {
            return inner_->check_free(name, as_folder);
        }
        Result<std::unique_ptr<NewFile>> create(const std::string& name, std::uint64_t bytes) override {
            TWR_CHECK(begin("create_new", name));
            TWR_TRY(auto file, inner_->create(name, bytes));
            return std::unique_ptr<NewFile>(std::make_unique<OneFile>(owner_, std::move(file), name));
        }
        Result<> make_folder(const std::string& name) override {
            TWR_CHECK(begin("make_folder", name));
            return inner_->make_folder(name);
        }
        Result<> make_link(const std::string& name, const std::string& to) override {
            TWR_CHECK(begin("make_link", name));
            return inner_->make_link(name, to);
        }
        Result<> sync() override {
            TWR_CHECK(begin("sync_new", ""));
            return inner_->sync();
        }

       private:
        class OneFile final : public NewFile {
           public:
            OneFile(FaultyFileSystem& owner, std::unique_ptr<NewFile> inner, std::string name)
                : owner_(owner), inner_(std::move(inner)), name_(std::move(name)) {}
            Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
                {
                    const std::lock_guard guard(owner_.mutex_);
                    TWR_CHECK(owner_.begin("write_new", name_));
                }
                return inner_->write_at(offset, bytes);
            }
            void set_time(std::int64_t mtime_ns) override { inner_->set_time(mtime_ns); }
            Result<> publish() override {
                {
                    const std::lock_guard guard(owner_.mutex_);
                    TWR_CHECK(owner_.begin("publish", name_));
                }
                return inner_->publish();
            }

           private:
            FaultyFileSystem& owner_;
            std::unique_ptr<NewFile> inner_;
            std::string name_;
        };
        Result<> begin(const char* operation, const std::string& name) {
            const std::lock_guard guard(owner_.mutex_);
            return owner_.begin(operation, name);
        }
        FaultyFileSystem& owner_;
        std::unique_ptr<NewFiles> inner_;
    };

    struct FileChange {
        std::uint64_t offset = 0;
        Bytes bytes;
        bool resize = false;  // to `offset`

        void apply(Bytes& content) const {
            if (resize) {
                content.resize(offset);
                return;
            }
            content.resize(std::max<std::size_t>(content.size(), offset + bytes.size()));
            std::copy(bytes.begin(), bytes.end(), content.begin() + static_cast<std::ptrdiff_t>(offset));
        }
    };

    struct Node {
        using Names = std::map<std::string, std::shared_ptr<Node>>;
        using NamesChange = std::vector<std::pair<std::string, std::shared_ptr<Node>>>;

        bool is_folder = false;
        // of a file
        Bytes content, durable_content;
        std::vector<FileChange> changes;  // since the last sync
        // of a folder; a name that is known and not in `names` is not there
        Names names, durable_names;
        std::vector<NamesChange> names_changes;
        std::set<std::string> known;

        static void apply(const NamesChange& change, Names& names) {
            for (const auto& [name, node] : change) {
                if (node == nullptr) {
                    names.erase(name);
                } else {
                    names[name] = node;
                }
            }
        }
        void change(FileChange change) {
            change.apply(content);
            changes.push_back(std::move(change));
        }
        void change(NamesChange change) {
            for (const auto& entry : change)
                known.insert(entry.first);
            apply(change, names);
            names_changes.push_back(std::move(change));
        }
        void sync() {
            durable_content = content;
            changes.clear();
            durable_names = names;
            names_changes.clear();
        }
        // What the disk holds after a power cut becomes all there is. Without `random`: what was synced.
        void settle(std::mt19937_64* random) {
            if (random != nullptr) {
                for (const auto& change : changes) {
                    const auto luck = (*random)() % 3;
                    if (luck == 0) continue;
                    FileChange part = change;
                    // A sector is the least that is written whole.
                    if (luck == 1) part.bytes.resize(part.bytes.size() / 2 / 512 * 512);
                    if (part.resize || !part.bytes.empty()) part.apply(durable_content);
                }
                const std::size_t kept = (*random)() % (names_changes.size() + 1);
                for (std::size_t i = 0; i < kept; ++i)
                    apply(names_changes[i], durable_names);
            }
            content = durable_content;
            changes.clear();
            names = durable_names;
            names_changes.clear();
        }
    };

    // A name in a folder, whether it is there or not. folder is null where the folder itself is not there.
    struct Place {
        std::shared_ptr<Node> folder;
        std::string name;
        std::string path;
        std::shared_ptr<Node> node() const {
            if (folder == nullptr) return nullptr;
            if (name.empty()) return folder;  // the root
            const auto found = folder->names.find(name);
            return found == folder->names.end() ? nullptr : found->second;
        }
    };

    class File final : public OutputFile {
       public:
        File(FaultyFileSystem& owner, std::unique_ptr<OutputFile> inner, std::string path,
             std::shared_ptr<Node> node, bool created)
            : owner_(owner),
              inner_(std::move(inner)),
              path_(std::move(path)),
              node_(std::move(node)),
              created_(created),
              boot_(owner.boots_) {}

        ~File() override {
            const std::lock_guard guard(owner_.mutex_);
            if (closed_ || !created_) return;
            if (owner_.dead_ || boot_ != owner_.boots_) {
                static_cast<void>(inner_->close().ok());  // nobody is there to remove the file
                return;
            }
            const Place place = owner_.find(path_);
            if (place.node() == node_) place.folder->change({{place.name, nullptr}});
        }

        Result<> write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
            const std::lock_guard guard(owner_.mutex_);
            auto begun = begin("write_at");
            if (!begun.ok()) {
                const auto part = bytes.first(std::min(bytes.size(), std::exchange(owner_.let_through_, 0)));
                if (!part.empty()) TWR_CHECK(write(offset, part));
                return begun;
            }
            return write(offset, bytes);
        }

        Result<> sync() override {
            const std::lock_guard guard(owner_.mutex_);
            TWR_CHECK(begin("sync"));
            TWR_CHECK(inner_->sync());
            node_->sync();
            return success();
        }

        void set_time(std::int64_t mtime_ns) override {
            const std::lock_guard guard(owner_.mutex_);
            if (!owner_.dead_ && boot_ == owner_.boots_) inner_->set_time(mtime_ns);
        }

        Result<> close() override {
            const std::lock_guard guard(owner_.mutex_);
            TWR_CHECK(begin("close"));
            TWR_CHECK(inner_->close());
            closed_ = true;
            return success();
        }

       private:
        Result<> begin(const char* operation) {
            if (boot_ != owner_.boots_) return Error{ErrorCode::io, path_ + ": opened before the power cut"};
            return owner_.begin(operation, path_);
        }

        Result<> write(std::uint64_t offset, std::span<const std::byte> bytes) {
            TWR_CHECK(inner_->write_at(offset, bytes));
            if (!bytes.empty()) node_->change({offset, Bytes(bytes.begin(), bytes.end()), false});
            return success();
        }

        FaultyFileSystem& owner_;
        std::unique_ptr<OutputFile> inner_;
        std::string path_;
        std::shared_ptr<Node> node_;
        bool created_;
        bool closed_ = false;
        std::size_t boot_;
    };

    template <class Do>
    Result<> move(const char* operation, const std::string& from, const std::string& to, Do&& really) {
        TWR_CHECK(begin(operation, from));
        const Place source = find(from);
        const Place target = find(to);
        load_all(source);
        load_all(target);
        TWR_CHECK(really());
        const auto node = source.node();
        if (source.folder == target.folder && source.name == target.name) return success();
        if (source.folder == target.folder) {
            source.folder->change({{source.name, nullptr}, {target.name, node}});
        } else {
            target.folder->change({{target.name, node}});
            source.folder->change({{source.name, nullptr}});
        }
        return success();
    }

    Result<> begin(const char* operation, const std::string& path) {
        log_.push_back(std::string(operation) + " " + path);
        if (dead_) return Error{ErrorCode::io, path + ": the machine is down"};
        if (log_.size() != fault_.at) return success();
        dead_ = fault_.dead_after;
        if (std::strcmp(operation, "write_at") == 0) let_through_ = fault_.written_first;
        Error error = fault_.error;
        return std::move(error).at(path);
    }

    std::unique_ptr<OutputFile> wrap(std::unique_ptr<OutputFile> inner, const std::string& path,
                                     std::shared_ptr<Node> node, bool created) {
        return std::make_unique<File>(*this, std::move(inner), path, std::move(node), created);
    }

    static std::vector<std::string> parts(const std::string& path) {
        std::vector<std::string> names;
        for (const auto& part : std::filesystem::absolute(path).lexically_normal().relative_path()) {
            if (!part.empty()) names.push_back(part.string());
        }
        return names;
    }

    static void load(Node& folder, const std::string& name, const std::string& path) {
        if (!folder.known.insert(name).second) return;
        const auto status = std::filesystem::status(path);
        if (!std::filesystem::exists(status)) return;
        auto node = std::make_shared<Node>();
        node->is_folder = std::filesystem::is_directory(status);
        if (std::filesystem::is_regular_file(status)) {
            std::ifstream stream(path, std::ios::binary);
            const std::vector<char> text(std::istreambuf_iterator<char>(stream), {});
            node->content.resize(text.size());
            if (!text.empty()) std::memcpy(node->content.data(), text.data(), text.size());
            node->durable_content = node->content;
        }
        folder.names[name] = node;
        folder.durable_names[name] = node;
        // Older than every change that is waiting, so part of the state that they start from; nothing else to do.
    }

    Place find(const std::string& path) {
        const auto names = parts(path);
        Place place{root_, "", "/"};
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (i != 0) place.folder = place.node();
            if (place.folder == nullptr) return place;
            place.name = names[i];
            place.path = (std::filesystem::path(place.path) / names[i]).string();
            load(*place.folder, place.name, place.path);
        }
        return place;
    }

    // All that a folder holds, as it is about to move or to go.
    void load_all(const Place& place) {
        const auto node = place.node();
        if (node == nullptr || !node->is_folder) return;
        for (const auto& entry : std::filesystem::directory_iterator(place.path)) {
            Place child{node, entry.path().filename().string(), entry.path().string()};
            load(*node, child.name, child.path);
            load_all(child);
        }
    }

    static void empty(Node& folder) {
        const auto names = folder.names;
        for (const auto& [name, node] : names) {
            if (node->is_folder) empty(*node);
            folder.change({{name, nullptr}});
        }
    }

    static void restore(Node& folder, const std::string& path, std::mt19937_64* random) {
        const auto before = folder.names;
        folder.settle(random);
        for (const auto& name : folder.known) {
            const std::string child_path = (std::filesystem::path(path) / name).string();
            const auto old = before.find(name);
            const auto now = folder.names.find(name);
            const bool same = old != before.end() && now != folder.names.end() && old->second == now->second;
            if (same && now->second->is_folder) {
                restore(*now->second, child_path, random);
            } else if (!same || !now->second->changes.empty()) {
                if (old != before.end()) std::filesystem::remove_all(child_path);
                if (now != folder.names.end()) make(*now->second, child_path, random);
            }
        }
    }

    static void make(Node& node, const std::string& path, std::mt19937_64* random) {
        node.settle(random);
        if (node.is_folder) {
            std::filesystem::create_directory(path);
            for (const auto& [name, child] : node.names) {
                make(*child, (std::filesystem::path(path) / name).string(), random);
            }
            return;
        }
        std::ofstream stream(path, std::ios::binary | std::ios::trunc);
        stream.write(reinterpret_cast<const char*>(node.content.data()),
                     static_cast<std::streamsize>(node.content.size()));
    }

    FileSystem& inner_;
    mutable std::mutex mutex_;
    std::shared_ptr<Node> root_ = [] {
        auto root = std::make_shared<Node>();
        root->is_folder = true;
        return root;
    }();
    std::vector<std::string> log_;
    Fault fault_;
    std::size_t let_through_ = 0;
    bool dead_ = false;
    std::size_t boots_ = 0;
};

}  // namespace twinrun::testing
