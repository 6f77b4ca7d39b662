#include "store/peers/testing/history.h"

#include <sys/stat.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "store/peers/removal.h"
#include "store/peers/testing/reference.h"

namespace kvcachefs {
namespace {

constexpr uint32_t kDirectoryMode = S_IFDIR | 0755;
constexpr size_t kMostBatches = 2000;  // of each node
constexpr uint32_t kFileMode = S_IFREG | 0644;

void walk(const NameView& view, const std::vector<Part>& parts, ObjectId directory, const std::string& path,
          std::map<std::string, std::string>& tree, std::string& problem) {
  const auto node_of = [&parts](ObjectId id) {
    return std::ranges::find(parts, id.node_ordinal(), &Part::ordinal)->node;
  };
  std::vector<NameEntry> entries;
  for (uint64_t after = 0;;) {
    const auto page = view.list(directory, after, 2);  // small, so that pages matter
    if (!page) return void(problem += path + ": list: " + page.error().message + "\n");
    if (page->empty()) break;
    entries.insert(entries.end(), page->begin(), page->end());
    after = page->back().cookie;
  }
  for (NameEntry& entry : entries) {
    const auto found = view.find_name(directory, entry.name);
    if (!found || !*found || (*found)->type_bits != entry.type_bits) return void(problem += path + "/" + entry.name + ": listed, and not found\n");
    entry.child = (*found)->child;
  }
  const auto again = view.list(directory, 0, 1000);
  const auto same = [](const NameEntry& a, const NameEntry& b) { return a.name == b.name && a.child == b.child && a.cookie == b.cookie; };
  if (!again || !std::ranges::equal(*again, entries, same)) return void(problem += path + ": listed and looked up are not the same\n");
  for (const NameEntry& entry : entries) {
    const std::string below = path + "/" + entry.name;
    const auto object = view.find_object(entry.child);
    if (!object || !*object) return void(problem += below + ": no object\n");
    if (!S_ISDIR(entry.type_bits)) {
      tree[below] = file_line(node_of(entry.child), id_there(entry.child), (*object)->attributes);
      continue;
    }
    const auto members = view.members(entry.child);
    if (!members) return void(problem += below + ": " + members.error().message + "\n");
    std::vector<std::pair<std::string, ObjectId>> its;
    for (const ObjectId id : *members) its.emplace_back(node_of(id), id_there(id));
    tree[below] = directory_line((*object)->attributes, its);
    walk(view, parts, entry.child, below, tree, problem);
  }
}

}  // namespace

std::map<std::string, std::string> tree_of(const NameView& view, const std::vector<Part>& parts, std::string& problem) {
  std::map<std::string, std::string> tree;
  walk(view, parts, kRootId, "", tree, problem);
  return tree;
}

template <class T>
T History::sure(Result<T> result) {
  if (result) return std::move(*result);
  problem_ += result.error().message + "\n";
  return T{};
}

History::History(uint64_t seed, HistoryOptions options, Bug bug) : random_(seed), options_(options), bug_(bug) {
  for (size_t at = 0; at < options_.nodes; ++at) {
    auto node = std::make_unique<Node>();
    node->name = fmt::format("node-{}", static_cast<char>('a' + at));
    node->states.reserve(kMostBatches + 1);  // they are pointed to
    node->states.emplace_back();
    node->read_at.emplace_back(options_.nodes, 0);
    node->read.assign(options_.nodes, 0);
    node->peers.resize(options_.nodes);
    node->clock_ns = static_cast<int64_t>(random_() % 1000);  // hours apart, as it were
    nodes_.push_back(std::move(node));
  }
  for (size_t at = 0; at < options_.nodes; ++at) {
    Node& node = *nodes_[at];
    std::vector<uint32_t> ordinals(options_.nodes);
    std::iota(ordinals.begin(), ordinals.end(), 1);
    std::ranges::shuffle(ordinals, random_);
    for (size_t other = 0; other < options_.nodes; ++other) {
      node.peers[other].index->state = &nodes_[other]->states[0];
      node.parts.push_back(node.peers[other].part(other == at ? 0 : ordinals[other], nodes_[other]->name));
    }
    node.classes = std::make_unique<DirectoryClasses>();
    node.view = std::make_unique<NameView>(node.parts[at], *node.classes);
    std::vector<Part> peers;
    for (size_t other = 0; other < options_.nodes; ++other)
      if (other != at) peers.push_back(node.parts[other]);
    node.view->set_peers(std::move(peers));
    PutRecord root;
    root.object.id = kRootId;
    root.object.attributes = fresh(node, kDirectoryMode);
    journal(node, {root});
  }
  for (size_t i = 0; i < options_.steps && problem_.empty(); ++i) step();
  if (options_.settle) settle();
}

size_t History::batches() const {
  size_t count = 0;
  for (const auto& node : nodes_) count += node->log.size();
  return count;
}

std::string History::difference(const Node& node) const {
  Reference reference;
  for (size_t other = 0; other < nodes_.size(); ++other) {
    const bool is_own = nodes_[other].get() == &node;
    reference.add(nodes_[other]->name, nodes_[other]->log, is_own ? node.log.size() : node.read[other]);
  }
  std::string problem;
  const auto seen = tree_of(*node.view, node.parts, problem), expected = reference.tree();
  if (seen == expected && problem.empty()) return {};
  for (const auto& [path, line] : expected) problem += fmt::format("expected {} {}\n", path, line);
  for (const auto& [path, line] : seen) problem += fmt::format("seen     {} {}\n", path, line);
  return node.name + ":\n" + problem;
}

Attributes History::fresh(Node& node, uint32_t mode) {
  Attributes attributes;
  attributes.mode = mode;
  node.clock_ns += 1 + static_cast<int64_t>(below(20));
  if (below(4) == 0) node.clock_ns = node.clock_ns / 10 * 10;  // so that some are born at once
  attributes.btime_ns = attributes.ctime_ns = attributes.mtime_ns = attributes.atime_ns = node.clock_ns;
  return attributes;
}

void History::journal(Node& node, Records records) {
  const size_t at = static_cast<size_t>(std::ranges::find(nodes_, &node, &std::unique_ptr<Node>::get) - nodes_.begin());
  if (bug_ == Bug::kSeenBeforeUnname && records.size() > 1 && std::holds_alternative<SeenRecord>(records.back())) {
    journal(at, {records.back()});
    records.pop_back();
  }
  if (bug_ == Bug::kStatementsNotSaid) std::erase_if(records, [](const Record& record) { return std::holds_alternative<StatementRecord>(record); });
  if (!records.empty()) journal(at, std::move(records));
}

void History::journal(size_t at, Records records) {
  Node& node = *nodes_[at];
  if (node.log.size() == kMostBatches) return void(problem_ += "too many batches\n");
  Batch batch{Stamp{1000 + node.log.size()}, std::move(records)};
  const JournalPosition after{1, 0, 100 * (node.log.size() + 1)};
  MemoryPart next = node.states.back();
  if (const Status applied = next.apply(batch, after); !applied) problem_ += applied.error().message;
  node.states.push_back(std::move(next));
  const Status applied = node.view->change(0, batch, [&]() -> Status {
    node.peers[at].index->state = &node.states.back();
    node.peers[at].statements->apply(batch, after);
    return {};
  });
  if (!applied) problem_ += applied.error().message;
  node.log.emplace_back(std::move(batch), after);
  node.read_at.push_back(node.read);
  node.read_at.back()[at] = node.log.size();
}

void History::read(size_t reader, size_t peer, size_t most) {
  Node& node = *nodes_[reader];
  const Node& its = *nodes_[peer];
  for (; most > 0 && node.read[peer] < its.log.size(); --most) {
    const auto& [batch, after] = its.log[node.read[peer]];
    const Status applied = node.view->change(node.parts[peer].ordinal, batch, [&]() -> Status {
      node.peers[peer].index->state = &its.states[++node.read[peer]];
      node.peers[peer].statements->apply(batch, after);
      return {};
    });
    if (!applied) problem_ += applied.error().message;
  }
}

// Called before a node changes names of its own.
bool History::answer_all(size_t at) {
  Node& node = *nodes_[at];
  bool any = false;
  for (size_t peer = 0; peer < nodes_.size(); ++peer) {
    if (peer == at || node.read[peer] == 0) continue;
    const JournalPosition until = nodes_[peer]->log[node.read[peer] - 1].second;
    auto records = sure(answer(node.parts[at], node.parts[peer], until)).records;
    if (records.empty()) continue;
    any = true;
    journal(node, std::move(records));
  }
  return any;
}

void History::settle() {
  for (bool again = true; again && problem_.empty();) {
    again = false;
    for (size_t at = 0; at < nodes_.size(); ++at) {
      for (size_t peer = 0; peer < nodes_.size(); ++peer)
        if (peer != at) read(at, peer, SIZE_MAX);
      again |= answer_all(at);
    }
  }
  for (size_t at = 0; at < nodes_.size(); ++at)
    for (size_t peer = 0; peer < nodes_.size(); ++peer)
      if (peer != at) read(at, peer, SIZE_MAX);
}

void History::step() {
  const size_t at = below(nodes_.size());
  if (below(5) < 2) {
    const size_t peer = below(nodes_.size());
    if (peer != at) read(at, peer, 1 + below(3));
    return;
  }
  if (nodes_[at]->log.size() >= options_.most_batches) return;
  answer_all(at);
  change(at);
}

ObjectId History::some_directory(Node& node) {
  ObjectId directory = kRootId;
  for (int level = 0; level < 2 && below(3) != 0; ++level) {
    auto entries = sure(node.view->list(directory, 0, 100));
    std::erase_if(entries, [](const NameEntry& entry) { return !S_ISDIR(entry.type_bits); });
    if (entries.empty()) break;
    const NameEntry& entry = entries[below(entries.size())];
    const auto found = sure(node.view->find_name(directory, entry.name));
    if (!found) break;
    directory = found->child;
  }
  return directory;
}

void History::change(size_t at) {
  Node& node = *nodes_[at];
  const ObjectId directory = some_directory(node);
  const std::string name(1, static_cast<char>('p' + below(3)));
  const auto entry = sure(node.view->find_name(directory, name));
  switch (below(8)) {
    case 0:
    case 1:
      if (!entry) make(node, directory, name, true);
      return;
    case 2:
    case 3:
    case 4:
      if (!entry || !S_ISDIR(entry->type_bits)) make(node, directory, name, false);
      return;
    case 5:
      if (entry && options_.renames) rename(node, directory, *entry);
      return;
    case 6:
      if (entry) below(3) == 0 ? drop_loser(node, directory, *entry) : give_attributes(node, *entry);
      return;
    default:
      if (entry) remove(node, directory, *entry);
  }
}

// This node's member of a directory; makes it if needed.
ObjectId History::own_directory(Node& node, ObjectId directory, Records& records) {
  ObjectId parent = kRootId;
  const auto levels = sure(node.view->levels_to_make(directory));
  if (!levels.empty()) parent = sure(node.view->own_member(levels.front().parent)).value_or(ObjectId{});
  for (const NameView::Level& level : levels) {
    PutRecord put;
    put.object.id = ObjectId::make(0, 1, node.next_number++);
    put.object.attributes = level.attributes;
    records.emplace_back(put);
    records.emplace_back(NameRecord{parent, level.name, put.object.id});
    parent = put.object.id;
  }
  return levels.empty() ? sure(node.view->own_member(directory)).value_or(ObjectId{}) : parent;
}

void History::make(Node& node, ObjectId directory, const std::string& name, bool is_directory) {
  Records records;
  const ObjectId parent = own_directory(node, directory, records);
  PutRecord put;
  put.object.id = ObjectId::make(0, 1, node.next_number++);
  put.object.attributes = fresh(node, is_directory ? kDirectoryMode : kFileMode);
  records.emplace_back(put);
  records.emplace_back(NameRecord{parent, name, put.object.id});
  for (Record& record : sure(node.view->statements_of_removal(directory, name))) records.push_back(std::move(record));
  journal(node, std::move(records));
}

void History::remove(Node& node, ObjectId directory, const NameEntry& entry) {
  if (S_ISDIR(entry.type_bits) && !sure(node.view->is_empty(entry.child))) {
    for (const NameEntry& each : sure(node.view->list(entry.child, 0, 100)))
      if (const auto found = sure(node.view->find_name(entry.child, each.name))) remove(node, entry.child, *found);
    if (below(3) == 0) return;
    if (below(2) == 0) answer_all(static_cast<size_t>(node.name.back() - 'a'));
  }
  Records records;
  for (const NameView::Binding& binding : sure(node.view->bindings(directory, entry.name)))
    if (binding.directory.node_ordinal() == 0)
      records.emplace_back(UnnameRecord{binding.directory, entry.name, binding.entry.child, false});
  for (Record& record : sure(node.view->statements_of_removal(directory, entry.name))) records.push_back(std::move(record));
  if (!records.empty()) journal(node, std::move(records));
}

void History::rename(Node& node, ObjectId directory, const NameEntry& entry) {
  const bool is_directory = S_ISDIR(entry.type_bits);
  if (is_directory ? sure(node.view->has_foreign_member(entry.child)) : entry.child.node_ordinal() != 0) return;  // EXDEV
  const ObjectId to = some_directory(node);
  const std::string name(1, static_cast<char>('p' + below(3)));
  for (ObjectId at = to; at != kRootId;) {
    if (at == entry.child) return;
    const auto known = node.classes->find(at);
    if (!known) return;
    at = known->parent;
  }
  const auto target = sure(node.view->find_name(to, name));
  if (target && (target->child == entry.child || is_directory || S_ISDIR(target->type_bits))) return;
  Records records;
  const ObjectId own_to = own_directory(node, to, records);
  const auto own_from = sure(node.view->own_member(directory));
  if (!own_from) return void(problem_ += "an own file in a directory without an own member\n");
  const ObjectId child = is_directory ? sure(node.view->own_member(entry.child)).value_or(ObjectId{}) : entry.child;
  records.emplace_back(NameRecord{own_to, name, child});
  records.emplace_back(UnnameRecord{*own_from, entry.name, child, false});
  for (Record& record : sure(node.view->statements_of_removal(to, name))) records.push_back(std::move(record));
  journal(node, std::move(records));
}

void History::give_attributes(Node& node, const NameEntry& entry) {
  const auto object = sure(node.view->find_object(entry.child));
  if (!object) return void(problem_ += "a name without an object\n");
  Attributes attributes = object->attributes;
  attributes.mode = (attributes.mode & S_IFMT) | static_cast<uint32_t>(0600 + below(64));
  attributes.ctime_ns = std::max(fresh(node, 0).ctime_ns, attributes.ctime_ns + static_cast<int64_t>(below(2)));
  Records records;
  if (S_ISDIR(entry.type_bits)) {
    const ObjectId own = own_directory(node, entry.child, records);
    records.emplace_back(AttributesRecord{own, attributes});
  } else if (entry.child.node_ordinal() == 0) {
    records.emplace_back(AttributesRecord{entry.child, attributes});
  } else {
    const auto owner = std::ranges::find(node.parts, entry.child.node_ordinal(), &Part::ordinal);
    records.emplace_back(StatementRecord{owner->node, {}, AttributesRecord{id_there(entry.child), attributes}});
  }
  journal(node, std::move(records));
}

void History::drop_loser(Node& node, ObjectId directory, const NameEntry& entry) {
  if (S_ISDIR(entry.type_bits) || entry.child.node_ordinal() == 0) return;
  for (const NameView::Binding& binding : sure(node.view->bindings(directory, entry.name)))
    if (binding.directory.node_ordinal() == 0)
      return journal(node, {UnnameRecord{binding.directory, entry.name, binding.entry.child, false}});
}

}  // namespace kvcachefs
