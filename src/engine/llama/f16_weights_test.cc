#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/llama/llama_engine.h"
#include "engine/llama/random_model_test.h"

namespace lynx {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class F16Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "lynx_f16_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string Folder() const { return root_ / "models"; }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(Folder())) files.push_back(entry.path());
    return files;
  }
  // The file of a random model.
  std::string Model(const std::string& name, int seed) const {
    const fs::path path = root_ / std::to_string(seed) / name;
    fs::create_directories(path.parent_path());
    const GgufModel model = MakeRandomModel({.embedding = 256, .vocabulary = 4096, .seed = std::uint64_t(seed)});
    llama_model_save_to_file(model.model.get(), path.c_str());
    return path;
  }
  fs::path root_;
};

TEST_F(F16Weights, AreMadeOnce) {
  const std::string model = Model("model.gguf", 1);
  const auto first = WithF16Weights(model, Folder());
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const auto made = fs::last_write_time(*first);
  EXPECT_EQ(WithF16Weights(model, Folder()).value(), *first);
  EXPECT_EQ(fs::last_write_time(*first), made);
}

TEST_F(F16Weights, ModelsOfOneNameAndSizeAreToldApart) {
  const std::string one = Model("model.gguf", 1), other = Model("model.gguf", 2);
  ASSERT_EQ(fs::file_size(one), fs::file_size(other));
  EXPECT_NE(WithF16Weights(one, Folder()).value(), WithF16Weights(other, Folder()).value());
}

TEST_F(F16Weights, SeveralAtOnceGetTheSameWholeFile) {
  const std::string model = Model("model.gguf", 1);
  std::vector<Result<std::string>> made(4, std::string());
  std::vector<std::thread> threads;
  for (auto& each : made) threads.emplace_back([&] { each = WithF16Weights(model, Folder()); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : made) {
    ASSERT_TRUE(each.ok()) << each.status().ToString();
    EXPECT_EQ(*each, *made[0]);
  }
  EXPECT_THAT(Files(), ElementsAre(*made[0]));
}

TEST_F(F16Weights, LongNamesAndWhatIsNoModel) {
  EXPECT_TRUE(WithF16Weights(Model(std::string(248, 'm') + ".gguf", 1), Folder()).ok());
  EXPECT_EQ(WithF16Weights(root_ / "none", Folder()).status().code(), ErrorCode::kIo);
  std::ofstream(root_ / "text") << "this is no model, but it is longer than a header";
  const Status text = WithF16Weights(root_ / "text", Folder()).status();
  EXPECT_EQ(text.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(text.message(), HasSubstr("not a GGUF"));
  // A header and nothing behind it; nothing is left of the try.
  std::ofstream(root_ / "cut") << "GGUF" << std::string(60, '\0');
  EXPECT_EQ(WithF16Weights(root_ / "cut", Folder()).status().code(), ErrorCode::kEngine);
  EXPECT_EQ(Files().size(), 1u);
}

}  // namespace
}  // namespace lynx
