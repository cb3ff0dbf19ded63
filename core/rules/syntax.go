package rules

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	// MaxDocument is the largest size of a document in bytes: 1 MiB, less 4 KiB for what [Push]
	// keeps with it in the store.
	MaxDocument = 1<<20 - 4<<10

	// maxDepth bounds how deep mappings and sequences may nest, twice as deep as any rule does,
	// maxFields the keys of one mapping, and maxMissing the keys without a value: the parser calls
	// itself for the first two, and takes a time that grows with the square of the others.
	maxDepth, maxFields, maxMissing = 12, 2048, 1024
)

const secondDocument = "a second document begins here; want one"

// byteOrderMark is what some editors begin a file with.
var byteOrderMark = []byte("\ufeff")

// parse returns the syntax tree of a document. YAML beyond mappings, sequences and scalars is
// refused before the parser sees it. The error is an *Errors.
func parse(text []byte) (body ast.Node, err error) {
	text = bytes.TrimPrefix(text, byteOrderMark)
	if e := checkText(text); e != nil {
		return nil, errorsOf([]Error{*e})
	}
	defer func() { // a parser of others, and texts of others
		if p := recover(); p != nil {
			body, err = nil, errorsOf([]Error{{1, 1, "", fmt.Sprintf("it cannot be parsed: %.100v", p)}})
		}
	}()
	tokens := lexer.Tokenize(string(text))
	if list := checkTokens(tokens); len(list) > 0 {
		return nil, errorsOf(list)
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // the walk finds them, with their places
	if err != nil {
		return nil, errorsOf([]Error{syntaxError(err)})
	}
	for _, d := range file.Docs {
		if body != nil {
			line, column := position(d.GetToken())
			return nil, errorsOf([]Error{{line, column, "", secondDocument}})
		}
		body = d.Body
	}
	if body == nil {
		return nil, errorsOf([]Error{{1, 1, "", "it is empty; for no rules write {}"}})
	}
	return body, nil
}

// checkText returns what makes a text no document, whatever it says.
func checkText(text []byte) *Error {
	at := func(i int, what string) *Error {
		line := text[bytes.LastIndexByte(text[:i], '\n')+1 : i]
		return &Error{1 + bytes.Count(text[:i], []byte{'\n'}), 1 + utf8.RuneCount(line), "", what}
	}
	if len(text) > MaxDocument {
		return &Error{1, 1, "", fmt.Sprintf("it has %d bytes, at most %d are allowed", len(text), MaxDocument)}
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return at(i, "a NUL; want text")
	}
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size <= 1 {
			return at(i, "this is not UTF-8")
		}
		i += size
	}
	return nil
}

// refused are the tokens of what no document may have: it could expand, or mean two things.
var refused = map[token.Type]string{
	token.AnchorType:     "anchors are not allowed",
	token.AliasType:      "aliases are not allowed",
	token.MergeKeyType:   "merge keys are not allowed",
	token.TagType:        "tags are not allowed",
	token.DirectiveType:  "directives are not allowed",
	token.MappingKeyType: "keys with a question mark are not allowed",
}

// maxRefused bounds the errors about tokens: a text that is no document may consist of them.
const maxRefused = 100

// checkTokens returns the tokens that are refused, and the place at which the document nests too
// deep or has too many keys in one mapping.
func checkTokens(tokens token.Tokens) (list []Error) {
	fail := func(t *token.Token, text string) {
		if len(list) < maxRefused {
			line, column := position(t)
			list = append(list, Error{line, column, "", text})
		}
	}
	var n nesting
	begun := false
	for _, t := range tokens {
		if t.Type == token.DocumentHeaderType && begun && len(list) == 0 {
			fail(t, secondDocument)
			break
		}
		begun = begun || t.Type != token.CommentType
		if text := refused[t.Type]; text != "" {
			fail(t, text)
		}
		if n.add(t); n.problem != "" {
			fail(t, n.problem)
			break
		}
	}
	return list
}

// nesting follows the tokens of a document through its mappings and sequences.
type nesting struct {
	frames  []frame
	missing int    // values
	problem string // that ends it
}

// frame is a mapping or a sequence that has begun.
type frame struct {
	flow, sequence bool
	column         int  // of a block
	fields         int  // of a mapping
	valued         bool // the last key of a flow mapping has a colon
}

func (n *nesting) add(t *token.Token) {
	switch t.Type {
	case token.SequenceStartType, token.MappingStartType:
		n.push(frame{flow: true, sequence: t.Type == token.SequenceStartType})
	case token.SequenceEndType, token.MappingEndType:
		n.endKey()
		for len(n.frames) > 0 { // a block cannot be in a flow; a broken text may have one
			if n.pop().flow {
				break
			}
		}
	case token.CollectEntryType:
		n.endKey()
		n.count()
	case token.SequenceEntryType:
		n.block(true, t.Position.Column)
		n.expectValue(t, t)
	case token.MappingValueType:
		key := t
		if t.Prev != nil {
			key = t.Prev
		}
		if top := n.top(); top != nil && top.flow {
			top.valued = true
		} else {
			n.block(false, key.Position.Column)
			n.count()
		}
		n.expectValue(key, t)
	}
}

// expectValue counts an entry, which begins with one token, whose value is missing behind another.
func (n *nesting) expectValue(first, last *token.Token) {
	next := last.Next
	if next != nil {
		switch next.Type {
		case token.CollectEntryType, token.MappingEndType, token.SequenceEndType, token.MappingValueType:
		case token.SequenceEntryType: // it may stand below its key
			if next.Position.Column > first.Position.Column || next.Position.Column == first.Position.Column && first != last {
				return
			}
		default:
			if next.Position.Line == first.Position.Line || next.Position.Column > first.Position.Column {
				return
			}
		}
	}
	n.miss()
}

// endKey counts the last key of a flow mapping if it has no colon.
func (n *nesting) endKey() {
	if top := n.top(); top != nil && top.flow && !top.sequence {
		if !top.valued {
			n.miss()
		}
		top.valued = false
	}
}

func (n *nesting) miss() {
	if n.missing++; n.missing > maxMissing {
		n.problem = fmt.Sprintf("more than %d keys without a value", maxMissing)
	}
}

func (n *nesting) top() *frame {
	if len(n.frames) == 0 {
		return nil
	}
	return &n.frames[len(n.frames)-1]
}

// block is called for an entry of a block sequence or a block mapping at a column.
func (n *nesting) block(sequence bool, column int) {
	for top := n.top(); top != nil && !top.flow; top = n.top() {
		if top.column == column && top.sequence == sequence {
			return
		}
		if top.column < column || top.column == column && sequence { // a sequence may stand below its key
			break
		}
		n.pop()
	}
	n.push(frame{sequence: sequence, column: column})
}

func (n *nesting) push(f frame) {
	n.frames = append(n.frames, f)
	if len(n.frames) > maxDepth {
		n.problem = fmt.Sprintf("more than %d mappings and sequences, one in another", maxDepth)
	}
}

func (n *nesting) pop() frame {
	top := *n.top()
	n.frames = n.frames[:len(n.frames)-1]
	return top
}

// count counts a key of the mapping that is open.
func (n *nesting) count() {
	top := n.top()
	if top == nil || top.sequence {
		return
	}
	if top.fields++; top.fields > maxFields {
		n.problem = fmt.Sprintf("more than %d keys in one mapping", maxFields)
	}
}

// position returns the place of a token, which the parser may have made up.
func position(t *token.Token) (line, column int) {
	if t == nil || t.Position == nil {
		return 1, 1
	}
	return max(t.Position.Line, 1), max(t.Position.Column, 1)
}

// maxQuoted bounds what an error quotes of a document, in bytes.
const maxQuoted = 100

// quote returns a text in quotes, cut.
func quote(text string) string {
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return fmt.Sprintf("%q", text)
}

// syntaxError returns the place of a parser's error.
func syntaxError(err error) Error {
	e := Error{Line: 1, Column: 1, Text: "it cannot be parsed"}
	var placed interface {
		error
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &placed) { // its Error would print the document, in a time that grows with the square
		e.Line, e.Column = position(placed.GetToken())
		e.Text = cut(placed.GetMessage())
	}
	return e
}
