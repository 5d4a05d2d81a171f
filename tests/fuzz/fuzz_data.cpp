// Damaged token files, indices, mix files, JSONL and archives.
#include <zstd.h>

#include "data/byte_source.h"
#include "data/document_reader.h"
#include "data/file_list.h"
#include "data/loader.h"
#include "data/token_file.h"
#include "tests/data/gzip.h"
#include "tests/fuzz/mutate.h"

using namespace olmo;

namespace {

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

void read_documents(const std::string& path, TextFormat format) {
  TextSettings settings;
  settings.inputs = {path};
  settings.format = format;
  DocumentReader reader(settings);
  for (RawDocument document; reader.next(document);) text_of(std::move(document), "text");
}

const std::string kLines =
    "{\"text\": \"In the beginning\\u0020\\n\", \"id\": 1, \"metadata\": {\"a\": [1, 2.5, null, true]}}\n\n"
    "{\"id\": \"x\", \"text\": \"God created\"}\n{\"text\": \"the heaven\"}\n";

}  // namespace

TEST_CASE("damaged token files through the loader", "[fuzz]") {
  const FuzzFile file("tokens.npy");
  std::vector<uint16_t> ids;
  for (uint16_t i = 0; i < 300; ++i) ids.push_back(i);
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 300;
  for (const std::string& valid : {raw(ids), raw(header) + raw(ids)}) {
    fuzz(valid, 5, 3000, 0.5, [&](const std::string& damaged) {
      LoaderSettings s;
      s.files = {file.write(damaged)};
      s.sequence_length = 16;
      s.vocab_size = 300;
      s.repetition_filter = s.document_mask = true;
      s.eos = 7;
      s.rows_of_step = [](int64_t) { return 4; };
      DataLoader loader(s, 1, {});
      for (int i = 0; i < 5; ++i) loader.next();
    });
  }
}

TEST_CASE("damaged Megatron indices", "[fuzz]") {
  const FuzzFile bin("m.bin"), index("m.idx");
  bin.write(raw(std::vector<int32_t>(60, 5)));
  const std::string valid = std::string("MMIDIDX\0\0", 9) + raw(std::vector<uint64_t>{1}) + '\4' +
                            raw(std::vector<uint64_t>{3, 2}) + raw(std::vector<int32_t>{10, 20, 30}) +
                            raw(std::vector<int64_t>{0, 40, 120}) + raw(std::vector<int64_t>{0, 3});
  fuzz(valid, 6, 3000, 0.5, [&](const std::string& damaged) {
    index.write(damaged);
    const TokenFile file(bin.path(), TokenType::u16);
    std::vector<int32_t> ids(static_cast<size_t>(file.tokens()));
    file.read(0, file.tokens(), 300, ids.data());
  });
}

TEST_CASE("damaged mix files", "[fuzz]") {
  const FuzzFile file("mix.txt");
  fuzz("# mix\nweb,{TOKENIZER}/a.npy\n\ncode,b/c.npy\n", 7, 3000, 0.5,
       [&](const std::string& damaged) { list_token_files({file.write(damaged)}, "/tmp", "tok"); });
}

TEST_CASE("damaged JSONL", "[fuzz]") {
  const FuzzFile file("lines.jsonl");
  fuzz(kLines, 8, 5000, 0.5,
       [&](const std::string& damaged) { read_documents(file.write(damaged), TextFormat::jsonl); });
}

TEST_CASE("damaged archives", "[fuzz]") {
  const FuzzFile file("archive");
  std::string text;
  for (int i = 0; i < 20; ++i) text += kLines;
  for (const std::string& valid : {gzip(text), zstd(text)}) {
    fuzz(valid, 9, 3000, 0.5, [&](const std::string& damaged) {
      const auto source = open_source(file.write(damaged));
      char block[512];
      for (int reads = 0; reads < 10000 && source->read(block, sizeof block) > 0;) ++reads;
    });
  }
}
