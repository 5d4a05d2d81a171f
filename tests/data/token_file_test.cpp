// Token files of every kind, good and bad.
#include "data/token_file.h"

#include <fcntl.h>

#include <cstring>

#include "data/file_list.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

std::vector<int32_t> read_all(const TokenFile& file) {
  std::vector<int32_t> ids(static_cast<size_t>(file.tokens()));
  file.read(0, file.tokens(), 60000, ids.data());
  return ids;
}

std::string refusal(const std::string& path, TokenType type = TokenType::u16) {
  return message_of<UserError>([&] { TokenFile(path, type); });
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llm_c_header(int32_t magic, int32_t version, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return raw(header);
}

std::string megatron_index(uint8_t code, const std::vector<int32_t>& lengths, int64_t item_bytes) {
  std::vector<int64_t> offsets;
  int64_t at = 0;
  for (const int32_t n : lengths) {
    offsets.push_back(at);
    at += n * item_bytes;
  }
  const std::vector<int64_t> documents = {0, static_cast<int64_t>(lengths.size())};
  return std::string("MMIDIDX\0\0", 9) + raw(std::vector<uint64_t>{1}) + static_cast<char>(code) +
         raw(std::vector<uint64_t>{lengths.size(), documents.size()}) + raw(lengths) + raw(offsets) + raw(documents);
}

}  // namespace

TEST_CASE("headerless arrays of every width", "[data]") {
  const ScratchFolder folder;
  const auto expected = counting<int32_t>(100);
  CHECK(read_all({folder.write_array("a", counting<uint8_t>(100)), TokenType::u8}) == expected);
  CHECK(read_all({folder.write_array("a", counting<uint16_t>(100)), TokenType::u16}) == expected);
  CHECK(read_all({folder.write_array("a", counting<uint32_t>(100)), TokenType::u32}) == expected);
  CHECK(read_all({folder.write_array("a", counting<uint64_t>(100)), TokenType::u64}) == expected);
}

TEST_CASE("the element type follows the vocabulary", "[data]") {
  CHECK(type_for_vocabulary(256) == TokenType::u8);
  CHECK(type_for_vocabulary(257) == TokenType::u16);
  CHECK(type_for_vocabulary(65536) == TokenType::u16);
  CHECK(type_for_vocabulary(100278) == TokenType::u32);
  CHECK(parse_token_type("auto", 65537) == TokenType::u32);
  CHECK(parse_token_type("uint8", 65537) == TokenType::u8);
  CHECK(contains(message_of<UserError>([] { parse_token_type("int3", 5); }), "allowed: auto"));
}

TEST_CASE("llm.c files are known by their magic", "[data]") {
  const ScratchFolder folder;
  const TokenFile gpt2(folder.write_array("a.bin", counting<uint16_t>(50), llm_c_header(20240520, 1, 50)),
                       TokenType::u32);
  CHECK(gpt2.type() == TokenType::u16);
  CHECK(read_all(gpt2) == counting<int32_t>(50));
  const TokenFile llama(folder.write_array("a.bin", counting<uint32_t>(50), llm_c_header(20240801, 7, 50)),
                        TokenType::u16);
  CHECK(llama.type() == TokenType::u32);
  CHECK(read_all(llama) == counting<int32_t>(50));
  const auto bad = [&](int32_t magic, int32_t version, int32_t tokens) {
    return refusal(folder.write_array("b.bin", counting<uint16_t>(50), llm_c_header(magic, version, tokens)));
  };
  CHECK(contains(bad(20240520, 2, 50), "version 2"));
  CHECK(contains(bad(20240520, 1, 51), "says 51 tokens"));
  CHECK(contains(bad(20240520, 1, -1), "says -1 tokens"));
  CHECK(contains(bad(20240522, 1, 50), "multiple-choice"));
  CHECK(contains(refusal(folder.write("c.bin", llm_c_header(20240520, 1, 0).substr(0, 100))), "header"));
}

TEST_CASE("Megatron files are read with their index", "[data]") {
  const ScratchFolder folder;
  const std::string bin = folder.write_array("m.bin", counting<int32_t>(60));
  const std::string index = megatron_index(4, {10, 20, 30}, 4);
  folder.write("m.idx", index);
  const TokenFile file(bin, TokenType::u16);
  CHECK(file.type() == TokenType::i32);
  CHECK(read_all(file) == counting<int32_t>(60));
  folder.write_array("s.bin", counting<uint16_t>(30));
  folder.write("s.idx", megatron_index(8, {30}, 2));
  CHECK(read_all({folder.path("s.bin"), TokenType::u32}) == counting<int32_t>(30));

  CHECK(contains(refusal(folder.path("m.idx")), "name the .bin"));
  const auto bad = [&](const std::string& text) {
    folder.write("m.idx", text);
    return refusal(bin);
  };
  CHECK(contains(bad(megatron_index(4, {10, 20, 31}, 4)), "its index"));
  CHECK(contains(bad(megatron_index(7, {60}, 4)), "type code 7"));
  CHECK(contains(bad("MMIDIDX"), "not one"));
  CHECK(contains(bad(index.substr(0, index.size() - 30)), "shorter than"));
  std::string moved = index;
  moved[34 + 12] = 1;
  CHECK(contains(bad(moved), "does not follow"));
  std::string version = index;
  version[9] = 2;
  CHECK(contains(bad(version), "version 2"));
}

TEST_CASE("a negative id in a signed file is past the vocabulary", "[data]") {
  const ScratchFolder folder;
  folder.write("n.idx", megatron_index(4, {3}, 4));
  const TokenFile file(folder.write_array("n.bin", std::vector<int32_t>{1, -7, 2}), TokenType::u16);
  CHECK(contains(message_of<UserError>([&] { file.check(100); }), "token 1 has id -7"));
}

TEST_CASE("bad token files", "[data]") {
  const ScratchFolder folder;
  CHECK(contains(refusal(folder.path("none.npy")), "none.npy: No such file"));
  CHECK(contains(refusal(folder.write("empty.npy", "")), "empty"));
  CHECK(contains(refusal(folder.path("")), "not a regular file"));
  CHECK(contains(refusal(folder.write("odd.npy", "abc")), "3 bytes are not a whole number of uint16"));
  CHECK(contains(refusal(folder.write("numpy.npy", "\x93NUMPY....")), "tofile"));
  CHECK(contains(refusal(folder.write("zip.npy", "PK\x03\x04....")), "archive"));
  CHECK(contains(refusal(folder.write("text.jsonl", "{}{}")), "data tokenize"));
}

TEST_CASE("an id past the vocabulary is named with file, offset and sizes", "[data]") {
  const ScratchFolder folder;
  auto ids = counting<uint32_t>(3000);
  ids[2345] = 70001;
  const TokenFile file(folder.write_array("ids.npy", ids), TokenType::u32);
  std::vector<int32_t> out(3000);
  const auto message = message_of<UserError>([&] { file.check(60000); });
  for (const char* part : {"ids.npy", "token 2345", "id 70001", "60000"}) CHECK(contains(message, part));
  CHECK(message_of<UserError>([&] { file.read(2000, 1000, 60000, out.data()); }) == message);
  file.read(0, 2345, 60000, out.data());
  file.check(70002);
  CHECK(message_of<UserError>([&] { file.check(70001); }).find("70001 (ids 0 to 70000)") != std::string::npos);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("offsets past 4 GiB", "[data]") {
  const ScratchFolder folder;
  const std::string path = folder.path("sparse.npy");
  constexpr int64_t kTokens = int64_t{5} << 29;  // 5 GiB of uint16
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(fd >= 0);
  REQUIRE(::ftruncate(fd, kTokens * 2) == 0);
  const auto pattern = counting<uint16_t>(1000, 17);
  constexpr int64_t kAt = (int64_t{9} << 28) + 3;  // past 4 GiB in bytes and past 2^31 in tokens
  REQUIRE(::pwrite(fd, pattern.data(), 2000, kAt * 2) == 2000);
  ::close(fd);
  const TokenFile file(path, TokenType::u16);
  CHECK(file.tokens() == kTokens);
  std::vector<int32_t> ids(1000);
  file.read(kAt, 1000, 60000, ids.data());
  CHECK(ids == counting<int32_t>(1000, 17));
  file.read(kTokens - 1000, 1000, 60000, ids.data());
  CHECK(ids == std::vector<int32_t>(1000));
}

TEST_CASE("patterns and mix files list files in order", "[data]") {
  const ScratchFolder folder;
  for (const char* name : {"b2.npy", "b10.npy", "a.npy", "z[1].npy"}) folder.write(name, "x");
  const auto list = [&](const std::vector<std::string>& entries) {
    return list_token_files(entries, folder.path(""), "tok");
  };
  CHECK(list({folder.path("b*.npy"), folder.path("a.npy")}) ==
        std::vector<std::string>{folder.path("b10.npy"), folder.path("b2.npy"), folder.path("a.npy")});
  CHECK(list({folder.path("z[1].npy")}) == std::vector<std::string>{folder.path("z[1].npy")});
  CHECK(contains(message_of<UserError>([&] { list({folder.path("q*.npy")}); }), "no file matches"));
  CHECK(contains(message_of<UserError>([&] { list({}); }), "no token files"));
  CHECK(contains(message_of<UserError>([&] { list({"s3://bucket/x.npy"}); }), "remote"));

  const std::string mix = folder.write("mix.txt", "# heading\n\nweb, {TOKENIZER}/b.npy \r\ncode,a.npy\n");
  CHECK(list({mix}) == std::vector<std::string>{folder.path("tok/b.npy"), folder.path("a.npy")});
  CHECK(contains(message_of<UserError>([&] { list({mix, mix}); }), "only entry"));
  CHECK(contains(message_of<UserError>([&] { read_mix(mix, "", ""); }), "line 3"));
  CHECK(contains(message_of<UserError>([&] { read_mix(folder.write("m.txt", "a,b\nnopath\n"), "", "t"); }), "line 2"));
  CHECK(contains(message_of<UserError>([&] { read_mix(folder.write("m.txt", "# only\n"), "", "t"); }), "no files"));
  CHECK(contains(message_of<UserError>([&] { read_mix(folder.path("none.txt"), "", "t"); }), "none.txt"));
}
