// Sums of digests in captured metadata: added up over the ranks they are the digests of the whole array, however it was captured
// and wherever it was brought since.
#include "digest/sums.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "capture/session.hpp"
#include "history/check_record.hpp"
#include "history/flush.hpp"
#include "history/pack.hpp"
#include "history/record_store.hpp"
#include "history/unpack.hpp"
#include "support/record.hpp"
#include "support/test_folder.hpp"
#include "support/threads_comm.hpp"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
using testing::ThreadsComm;
using testing::unsynced_file_system;

constexpr int kRanks = 5;
constexpr std::uint64_t kRows = 60;
constexpr std::uint64_t kColumns = 500;
constexpr std::uint64_t kWide = 33;  // of a column-major array of complex numbers
constexpr std::uint64_t kTall = 70;
constexpr std::uint64_t kParticles = 6000;
constexpr std::uint64_t kStride = 4;  // from the three components of one ID to those of the next
constexpr double kAtol = 1e-3;

// The whole arrays at a step, as they are numbered: rows that no ID fills are 0.
struct Whole {
    explicit Whole(std::int64_t step)
        : density(kRows * kColumns), wave(2 * kWide * kTall), id(kParticles), velocity(kParticles * kStride) {
        const auto value = [&](std::uint64_t i) {
            return static_cast<double>(i * 2654435761U % 100'003) * 1e-3 + static_cast<double>(step) * 1e-5;
        };
        for (std::uint64_t i = 0; i < density.size(); ++i)
            density[i] = value(i);
        for (std::uint64_t i = 0; i < wave.size(); ++i)
            wave[i] = static_cast<float>(value(7 * i));
        for (std::uint64_t i = 0; i < kParticles; ++i) {
            id[i] = static_cast<std::int64_t>(i);
            for (std::uint64_t k = 0; k < 3; ++k)
                velocity[i * kStride + k] = static_cast<float>(value(3 * i + k + 5));
        }
    }
    std::vector<double> density;
    std::vector<float> wave;  // column-major: the first index is the fastest
    std::vector<std::int64_t> id;
    std::vector<float> velocity;
};

// What a rank holds of it at a step. Particles are on another rank at another step, and in any order.
struct Part {
    Part(const Whole& whole, std::int64_t step, int rank) {
        // Four ranks are the quarters of the plane, unequal ones; the last has nothing of it.
        const std::uint64_t row = rank == 4 ? kRows : rank / 2 == 0 ? 0 : 25;
        const std::uint64_t rows = rank == 4 ? 0 : rank / 2 == 0 ? 25 : kRows - 25;
        const std::uint64_t column = rank % 2 == 0 ? 0 : 120;
        const std::uint64_t columns = rank == 4 ? kColumns : rank % 2 == 0 ? 120 : kColumns - 120;
        for (std::uint64_t i = row; i < row + rows; ++i) {
            for (std::uint64_t j = column; j < column + columns; ++j)
                density.push_back(whole.density[i * kColumns + j]);
        }
        add("density", DType::f64, {rows, columns}, density.data());
        fields.back().global_shape = {kRows, kColumns};
        fields.back().global_offset = {row, column};
        const std::uint64_t begin = kWide * static_cast<std::uint64_t>(rank) / kRanks;
        const std::uint64_t end = kWide * static_cast<std::uint64_t>(rank + 1) / kRanks;
        for (std::uint64_t j = 0; j < kTall; ++j) {
            for (std::uint64_t i = begin; i < end; ++i) {
                wave.push_back(whole.wave[2 * (j * kWide + i)]);
                wave.push_back(whole.wave[2 * (j * kWide + i) + 1]);
            }
        }
        add("wave", DType::c64, {end - begin, kTall}, wave.data());
        fields.back().order = ArrayOrder::column_major;
        fields.back().global_shape = {kWide, kTall};
        fields.back().global_offset = {begin, 0};
        std::vector<std::uint64_t> own;
        for (std::uint64_t i = 0; i < kParticles; ++i) {
            if (static_cast<int>((i / 100 + static_cast<std::uint64_t>(step)) % (kRanks - 1)) == rank)
                own.push_back(i);
        }
        std::shuffle(own.begin(), own.end(), std::mt19937_64(static_cast<std::uint64_t>(step * 8 + rank)));
        for (const std::uint64_t i : own) {
            id.push_back(static_cast<std::int64_t>(i));
            const auto from = whole.velocity.begin() + static_cast<std::ptrdiff_t>(i * kStride);
            velocity.insert(velocity.end(), from, from + 3);
        }
        add("velocity", DType::f32, {own.size(), 3}, velocity.data());
        fields.back().ids = "id";
        add("id", DType::i64, {own.size()}, id.data());
    }
    void add(const std::string& name, DType dtype, std::vector<std::uint64_t> shape, const void* data) {
        CapturedField field;
        field.name = name;
        field.dtype = dtype;
        field.shape = std::move(shape);
        field.data = data;
        fields.push_back(field);
    }
    std::vector<double> density;
    std::vector<float> wave;
    std::vector<std::int64_t> id;
    std::vector<float> velocity;
    std::vector<CapturedField> fields;
};

const std::vector<std::string> kFields{"density", "wave", "velocity", "id"};

// One rank's sums of a field at a step, and what its metadata says of them.
struct OfRank {
    FieldMetadata field;
    std::vector<PartialSum> sums;
};
using Sums = std::map<std::pair<std::int64_t, std::string>, std::vector<OfRank>>;

Sums sums_in(const std::string& path) {
    Sums found;
    const auto history = History::open(path);
    EXPECT_TRUE(history) << history.error().message;
    if (!history) return found;
    for (const HistoryStep& step : history->steps) {
        EXPECT_EQ(step.ranks.size(), static_cast<std::size_t>(kRanks));
        for (const RankFiles& files : step.ranks) {
            const auto opened = MetadataFile::open((fs::path(path) / step.folder / files.metadata).string());
            EXPECT_TRUE(opened) << opened.error().message;
            if (!opened) continue;
            MetadataFile& metadata = **opened;
            EXPECT_EQ(metadata.directory().version, 4U);  // IDs are exact integers
            for (std::size_t f = 0; f < metadata.directory().fields.size(); ++f) {
                const FieldMetadata& field = metadata.directory().fields[f];
                const auto sums = metadata.sums(f);
                EXPECT_TRUE(sums) << sums.error().message;
                found[{step.step, field.name}].push_back({field, sums.value()});
            }
        }
    }
    return found;
}

std::vector<PartialSum> sums_of_array(const FieldMetadata& like, const void* data, std::uint64_t scalars) {
    const ChunkShape shape = like.chunking();
    std::vector<ChunkDigest> digests(divide_up(scalars, shape.chunk_scalars));
    std::vector<std::byte> residues(digests.size() * shape.residue_bytes_per_chunk);
    Digester(like.settings, scalar_type(like.dtype))
        .chunks(dense_view(like.dtype, data), 0, scalars, digests.data(), residues.data(), nullptr);
    std::vector<std::uint64_t> coarse;
    std::vector<std::uint64_t> fine;
    for (const ChunkDigest& d : digests) {
        coarse.push_back(d.coarse);
        fine.push_back(d.fine);
    }
    return sums_of_whole(coarse, fine, scalars, shape);
}

// The ranks' sums added up are the digests of the array that they make up.
void expect_whole(const std::vector<OfRank>& ranks, const void* data, std::uint64_t scalars) {
    std::vector<SumsOfPart> parts;
    unsigned height = 0;
    for (const OfRank& rank : ranks) {
        if (rank.field.items() == 0) {
            EXPECT_TRUE(rank.sums.empty());
            continue;
        }
        EXPECT_EQ(rank.field.sums.kind, rank.field.key.empty() ? SumsKind::place : SumsKind::ids);
        EXPECT_EQ(rank.field.sums.buckets, rank.sums.size());
        parts.push_back({rank.sums, rank.field.sums.height});
        height = std::max<unsigned>(height, rank.field.sums.height);
    }
    ASSERT_GE(parts.size(), 4U);
    const FieldMetadata& like = ranks[0].field;
    const std::size_t blocks = like.chunking().blocks_per_chunk;
    const auto whole = sums_of_array(like, data, scalars);
    const SumsOfPart all{whole, 0};
    EXPECT_EQ(add_sums(parts, height, blocks), add_sums({&all, 1}, height, blocks));
}

void expect_step(const Sums& sums, std::int64_t step, const Whole& whole) {
    SCOPED_TRACE("step " + std::to_string(step));
    expect_whole(sums.at({step, "density"}), whole.density.data(), whole.density.size());
    expect_whole(sums.at({step, "wave"}), whole.wave.data(), whole.wave.size());
    expect_whole(sums.at({step, "velocity"}), whole.velocity.data(), whole.velocity.size());
    expect_whole(sums.at({step, "id"}), whole.id.data(), whole.id.size());
    for (const std::string name : {"velocity", "id"}) {
        std::uint64_t smallest = kParticles;
        std::uint64_t largest = 0;
        for (const OfRank& rank : sums.at({step, name})) {
            EXPECT_EQ(rank.field.key, "id");
            if (rank.field.items() == 0) continue;
            EXPECT_EQ(rank.field.sums.smallest_id % 100, 0U);  // blocks of 100 on a rank
            EXPECT_EQ(rank.field.sums.largest_id % 100, 99U);
            smallest = std::min(smallest, rank.field.sums.smallest_id);
            largest = std::max(largest, rank.field.sums.largest_id);
        }
        EXPECT_EQ(smallest, 0U);
        EXPECT_EQ(largest, kParticles - 1);
    }
}

void expect_same(const Sums& a, const Sums& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, ranks] : a) {
        SCOPED_TRACE(name.second + ", step " + std::to_string(name.first));
        const auto& others = b.at(name);
        ASSERT_EQ(ranks.size(), others.size());
        for (std::size_t r = 0; r < ranks.size(); ++r) {
            EXPECT_EQ(ranks[r].field.key, others[r].field.key);
            EXPECT_EQ(ranks[r].field.sums, others[r].field.sums);
            EXPECT_EQ(ranks[r].sums, others[r].sums);
        }
    }
}

class CapturedSums : public testing::FolderTest {
   protected:
    [[nodiscard]] std::string at(const std::string& name) const { return (folder_ / name).string(); }

    static SessionSettings settings() {
        SessionSettings s;
        s.history.tolerance.atol = kAtol;
        s.memory_bytes = 16 << 20;
        s.threads = 2;
        return s;
    }
    static void capture(const std::string& path, const SessionSettings& settings) {
        ThreadsComm::run(kRanks, [&](Comm& comm) {
            auto run = Session::open(unsynced_file_system(), comm, path, settings);
            ASSERT_TRUE(run) << run.error().message;
            for (const std::int64_t step : {0, 1}) {
                const Part part(Whole(step), step, comm.rank());
                const auto report = (*run)->capture_fields(step, part.fields);
                ASSERT_TRUE(report) << report.error().message;
            }
            const auto lost = (*run)->close();
            ASSERT_TRUE(lost && lost->empty());
        });
    }
    static void expect_captured(const std::string& path) {
        const Sums sums = sums_in(path);
        ASSERT_EQ(sums.size(), 2 * kFields.size());
        for (const std::int64_t step : {0, 1})
            expect_step(sums, step, Whole(step));
    }
    static PackOptions options(RecordMethod method) {
        PackOptions all;
        all.settings.method = method;
        all.settings.chunk_bytes = 64;
        return all;
    }
};

TEST_F(CapturedSums, AddUpToTheWholeHoweverTheyWereCaptured) {
    const std::map<std::string, void (*)(SessionSettings&, const std::string&)> ways = {
        {"at once", [](SessionSettings& s, const std::string&) { s.background = false; }},
        {"no memory", [](SessionSettings& s, const std::string&) { s.memory_bytes = 0; }},
        {"background", [](SessionSettings&, const std::string&) {}},
        {"no data", [](SessionSettings& s, const std::string&) { s.history.keep_data = false; }},
        {"record", [](SessionSettings& s, const std::string&) { s.record = RecordMethod::runs; }},
        {"shared", [](SessionSettings& s, const std::string&) { s.shared_files = SharedFiles::one; }},
        {"local", [](SessionSettings& s, const std::string& local) { s.local = local; }},
        {"large chunks", [](SessionSettings& s, const std::string&) { s.history.chunk_bytes = 65536; }},
        {"two bits", [](SessionSettings& s, const std::string&) { s.history.residue_bits = 2; }},
    };
    for (const auto& [name, change] : ways) {
        SCOPED_TRACE(name);
        SessionSettings s = settings();
        change(s, at(name + " local"));
        capture(at(name), s);
        expect_captured(at(name));
    }
    // Nor do they depend on it.
    for (const auto* name : {"no memory", "background", "no data", "record", "shared", "local"})
        expect_same(sums_in(at("at once")), sums_in(at(name)));
}

TEST_F(CapturedSums, AreKeptWhenHistoriesArePackedAndGivenBack) {
    capture(at("run"), settings());
    SessionSettings s = settings();
    s.shared_files = SharedFiles::one;
    capture(at("shared"), s);
    const Sums captured = sums_in(at("run"));
    for (const auto* source : {"run", "shared"}) {
        for (const RecordMethod method : {RecordMethod::runs, RecordMethod::full}) {
            SCOPED_TRACE(source);
            for (const auto* made : {"record", "again", "back"})
                fs::remove_all(at(made));
            auto packed = pack_history(unsynced_file_system(), at(source), at("record"), options(method), {});
            ASSERT_TRUE(packed) << packed.error().message;
            expect_same(captured, sums_in(at("record")));
            // A record of a record, and a history of that.
            packed = pack_history(unsynced_file_system(), at("record"), at("again"),
                                  options(RecordMethod::tree), {});
            ASSERT_TRUE(packed) << packed.error().message;
            expect_same(captured, sums_in(at("again")));
            for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
                const auto problems = check_record(at("again"), rank, 1);
                ASSERT_TRUE(problems) << problems.error().message;
                EXPECT_TRUE(problems->empty());
            }
            const auto back = unpack_steps(unsynced_file_system(), at("again"), {0, 1}, at("back"), false, 1);
            ASSERT_TRUE(back) << back.error().message;
            expect_same(captured, sums_in(at("back")));
        }
    }
    expect_captured(at("back"));
}

// What a bounded record gives back is not what was captured, and its sums are those of what it gives back.
TEST_F(CapturedSums, OfABoundedRecordAreThoseOfWhatItGivesBack) {
    capture(at("run"), settings());
    PackOptions how = options(RecordMethod::runs);
    how.settings.bounded = true;
    const auto packed = pack_history(unsynced_file_system(), at("run"), at("record"), how, {});
    ASSERT_TRUE(packed) << packed.error().message;
    const auto back = unpack_steps(unsynced_file_system(), at("record"), {0, 1}, at("back"), false, 1);
    ASSERT_TRUE(back) << back.error().message;
    expect_same(sums_in(at("record")), sums_in(at("back")));
    const auto history = History::open(at("back"));
    ASSERT_TRUE(history) << history.error().message;
    bool another = false;
    for (const HistoryStep& step : history->steps) {
        // Put together from the data of all ranks.
        const Whole captured(step.step);
        Whole whole(step.step);
        std::fill(whole.density.begin(), whole.density.end(), -1.0);
        std::fill(whole.wave.begin(), whole.wave.end(), -1.0F);
        std::vector<float> velocity(whole.velocity.size());
        for (const RankFiles& files : step.ranks) {
            const auto bytes =
                testing::read_file((fs::path(history->path) / step.folder / files.data).string());
            const auto metadata =
                MetadataFile::open((fs::path(history->path) / step.folder / files.metadata).string());
            ASSERT_TRUE(metadata) << metadata.error().message;
            const auto values = [&]<class T>(const std::string& name, std::vector<T>& to) {
                const FieldMetadata& field = (*metadata)->directory().fields[*(*metadata)->find(name)];
                to.resize(field.data_bytes() / sizeof(T));
                if (!to.empty())
                    std::memcpy(to.data(), bytes.data() + field.extents[0].offset, field.data_bytes());
                return field;
            };
            std::vector<double> density;
            FieldMetadata field = values("density", density);
            for (std::uint64_t i = 0; i < density.size(); ++i) {
                const std::uint64_t row = i / field.shape[1] + field.global_offset[0];
                whole.density[row * kColumns + i % field.shape[1] + field.global_offset[1]] = density[i];
            }
            std::vector<float> wave;
            field = values("wave", wave);  // stored slowest dimension first
            for (std::uint64_t i = 0; i < wave.size() / 2; ++i) {
                const std::uint64_t to =
                    i / field.shape[1] * kWide + i % field.shape[1] + field.global_offset[1];
                whole.wave[2 * to] = wave[2 * i];
                whole.wave[2 * to + 1] = wave[2 * i + 1];
            }
            std::vector<std::int64_t> id;
            std::vector<float> rows;
            values("id", id);
            values("velocity", rows);
            for (std::size_t i = 0; i < id.size(); ++i) {
                for (std::size_t k = 0; k < 3; ++k)
                    velocity[static_cast<std::uint64_t>(id[i]) * kStride + k] = rows[3 * i + k];
            }
        }
        whole.velocity = velocity;
        another = another || whole.density != captured.density;
        for (std::size_t i = 0; i < whole.density.size(); ++i)
            ASSERT_LE(std::abs(whole.density[i] - captured.density[i]), kAtol);
        expect_step(sums_in(at("record")), step.step, whole);
    }
    EXPECT_TRUE(another);
}

// ---- where there are none ----

class NoSums : public CapturedSums {
   protected:
    // Metadata of one rank that captures these fields.
    std::shared_ptr<MetadataFile> capture_fields(const std::vector<CapturedField>& fields,
                                                 const SessionSettings& settings) {
        fs::remove_all(at("run"));
        SelfComm comm;
        auto run = Session::open(unsynced_file_system(), comm, at("run"), settings);
        EXPECT_TRUE(run) << run.error().message;
        const auto report = (*run)->capture_fields(0, fields);
        EXPECT_TRUE(report) << report.error().message;
        EXPECT_TRUE((*run)->close());
        const auto history = History::open(at("run"));
        EXPECT_TRUE(history) << history.error().message;
        const HistoryStep& step = history->steps.at(0);
        return MetadataFile::open((fs::path(at("run")) / step.folder / step.ranks[0].metadata).string())
            .value();
    }
    static void expect_none(const MetadataFile& metadata, const std::string& key) {
        for (const FieldMetadata& field : metadata.directory().fields) {
            EXPECT_EQ(field.sums, SumsFacts());
            EXPECT_EQ(field.key, key);
        }
    }
};

TEST_F(NoSums, OfWholeArraysWhoseFilesAreOfVersionOne) {
    std::vector<double> values(3000, 1.5);
    CapturedField field;
    field.name = "x";
    field.dtype = DType::f64;
    field.shape = {30, 100};
    field.data = values.data();
    auto metadata = capture_fields({field}, settings());
    EXPECT_EQ(metadata->directory().version, 1U);
    expect_none(*metadata, "");
    field.global_shape = field.shape;
    field.global_offset = {0, 0};
    metadata = capture_fields({field}, settings());
    EXPECT_EQ(metadata->directory().version, 1U);
    expect_none(*metadata, "");
    // A part by one row.
    field.global_shape = {31, 100};
    metadata = capture_fields({field}, settings());
    EXPECT_EQ(metadata->directory().version, 2U);
    EXPECT_EQ(metadata->directory().fields[0].sums.kind, SumsKind::place);
}

TEST_F(NoSums, OfIdsThatAreNegativeOrFarApart) {
    std::vector<std::int64_t> ids(50);
    std::vector<double> rows(50);
    CapturedField id;
    id.name = "id";
    id.dtype = DType::i64;
    id.shape = {50};
    id.data = ids.data();
    CapturedField field;
    field.name = "x";
    field.dtype = DType::f64;
    field.shape = {50};
    field.data = rows.data();
    field.ids = "id";
    for (const std::int64_t apart : {1, 1'000'000'000}) {
        for (const std::int64_t first : {0, -1}) {
            for (std::size_t i = 0; i < ids.size(); ++i)
                ids[i] = first + apart * static_cast<std::int64_t>(i);
            const auto metadata = capture_fields({id, field}, settings());
            EXPECT_EQ(metadata->directory().version, 4U);
            if (apart == 1 && first == 0) {
                for (const FieldMetadata& f : metadata->directory().fields)
                    EXPECT_EQ(f.sums, (SumsFacts{SumsKind::ids, 0, 1, 0, 49}));
            } else {
                expect_none(*metadata, "id");
            }
        }
    }
}

TEST_F(NoSums, OfPublishedDigests) {
    std::vector<std::int64_t> ids(50);
    std::iota(ids.begin(), ids.end(), 0);
    CapturedField id;
    id.name = "id";
    id.dtype = DType::i64;
    id.shape = {50};
    id.data = ids.data();
    CapturedField field = id;
    field.name = "x";
    field.ids = "id";
    SessionSettings s = settings();
    s.history.kind = DigestKind::published;
    s.history.residue_bits = 0;
    expect_none(*capture_fields({id, field}, s), "id");
}

// A field may have no name. It has no IDs either, not even its own.
TEST_F(NoSums, OfAFieldWithoutAName) {
    std::vector<double> values(300, 0.25);
    CapturedField field;
    field.dtype = DType::f64;
    field.shape = {300};
    field.data = values.data();
    SessionSettings s = settings();
    EXPECT_EQ(capture_fields({field}, s)->directory().version, 1U);
    PackOptions how = options(RecordMethod::runs);
    how.settings.bounded = true;
    const auto packed = pack_history(unsynced_file_system(), at("run"), at("record"), how, {});
    EXPECT_TRUE(packed) << packed.error().message;
}

}  // namespace
}  // namespace twinrun
